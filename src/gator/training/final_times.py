"""The finished networks of a run timed beside the dense one, on every runtime that is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.latency.runtimes.by_name import runtime_of
from gator.cost.timing import Timing
from gator.training.costs import KEEP_LAYOUT

_ALL = ("eager", "onnxruntime", "openvino")  # torch.compile takes minutes for a large network
_SLOWER = 1.03  # times the dense network; less may be chance
_LAYERS = 3  # that are named
log = logging.getLogger("gator")


@dataclass(frozen=True)
class RuntimeTimes:
    """Times of the dense and the other networks on one runtime, interleaved."""

    runtime: str
    timings: tuple[Timing, ...]


def times_on_all(
    networks: Sequence[nn.Module], timer: NetworkTimer, say: Callable[[str], None] = log.info
) -> tuple[RuntimeTimes, ...]:
    """On the runtime of `timer`, accurately, and on the others that are installed and can run these networks.

    `say` is told what is timed, before each runtime.
    """
    say(f"timing {len(networks)} networks on {timer.setup.runtime}, interleaved; on a busy machine this is repeated")
    found = [RuntimeTimes(timer.setup.runtime, timer.accurate_times([timer.prepare(network) for network in networks]))]
    for name in _ALL:
        if name == timer.setup.runtime:
            continue
        other = on_runtime(timer, name)
        try:
            runtime_of(other.setup)
            say(f"timing them on {name}")
            found.append(RuntimeTimes(name, other.times([other.prepare(network) for network in networks])))
        except Exception as error:  # not installed, or it cannot run this network: the others still count
            log.info("not timed on %s: %s", name, str(error).splitlines()[0] if str(error) else type(error).__name__)
    return tuple(found)


def on_runtime(timer: NetworkTimer, name: str) -> NetworkTimer:
    """The same conditions on another runtime."""
    channels_last = timer.setup.channels_last and name in KEEP_LAYOUT
    return replace(timer, setup=replace(timer.setup, runtime=name, channels_last=channels_last))


def why_slower(
    times: RuntimeTimes, index: int, dense: nn.Module, network: nn.Module, timer: NetworkTimer, round_to: int | str
) -> str:
    """A sentence about a network that is slower than the dense one on a runtime: where, and what to set; else empty."""
    dense_ms, ms = (times.timings[number].mean_ms for number in (0, index))
    if ms <= _SLOWER * dense_ms:
        return ""
    here = on_runtime(timer, times.runtime)
    before, after = (_layers(each, here) for each in (dense, network))
    worst = sorted(after, key=lambda name: before.get(name, 0.0) - after[name])[:_LAYERS]
    where = f", mostly in {', '.join(worst)}" if worst else ""
    advice = "prune.round_to = 8" if round_to != 8 else 'prune.cost = "latency" with latency.runtime = ' + f'"{times.runtime}"'
    return (
        f"on {times.runtime} the pruned network takes {ms / dense_ms:.2f} times as long as the dense one{where}\n"
        f"  A likely cause is a width that is not a multiple of what its kernels work on at a time: try {advice}."
    )


def _layers(network: nn.Module, timer: NetworkTimer) -> dict[str, float]:
    """Milliseconds of every layer, as far as the runtime reports them."""
    try:
        with timer.setup.on():
            return dict(runtime_of(timer.setup).layers(network, timer.setup.arguments(timer.inputs), timer.setup, 3))
    except Exception as error:  # the sentence is worth less than the result of the run
        log.info("the layers could not be timed on %s: %s", timer.setup.runtime, error)
        return {}
