"""Finished networks are timed on every runtime, and one on which the pruned network is slower is named with its layers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from training.small import short_recipe

import gator
from gator.cost.latency.network_timer import NetworkTimer
from gator.cost.latency.runtimes import by_name
from gator.cost.latency.runtimes.run_setup import checked_setup
from gator.cost.timing import timed
from gator.errors import MissingExtraError
from gator.graph.inputs import describe
from gator.training.final_times import times_on_all, why_slower
from gator.training.finish import _missed
from gator.training.report import Figures, Outcome

sys.path.insert(0, str(Path(__file__).parent.parent / "cost" / "latency"))

from fakes import CLOCK, Fake


class DislikesOddWidths(Fake):
    """Convolutions with an odd number of channels take ten times as long."""

    def ms(self, network: nn.Module, call) -> float:
        return sum(ms for _, ms in self.layers(network, call, None, 1))

    def layers(self, network, call, setup, rounds):
        found = [(name, m.out_channels) for name, m in network.named_modules() if isinstance(m, nn.Conv2d)]
        return [(name, width * (10.0 if width % 2 else 1.0)) for name, width in found]


class NotInstalled(Fake):
    def check(self, setup) -> None:
        raise MissingExtraError("needs openvino; pip install 'torch-gator[latency]'")


@pytest.fixture(autouse=True)
def _fakes(monkeypatch) -> None:
    for name, runtime in (("eager", Fake()), ("onnxruntime", DislikesOddWidths()), ("openvino", NotInstalled())):
        monkeypatch.setitem(by_name.RUNTIMES, name, runtime)
    monkeypatch.setattr(timed, "__kwdefaults__", timed.__kwdefaults__ | {"clock": CLOCK, "switches": CLOCK.switches})


def networks() -> tuple[list[nn.Module], NetworkTimer]:
    dense = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3))
    pruned = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 7, 3), nn.Conv2d(7, 8, 3))
    setup = checked_setup("eager", "cpu", 1, "float32", True, 2)
    return [dense, pruned], NetworkTimer(setup, describe(torch.zeros(2, 3, 8, 8)), 5)


def test_all_runtimes_that_are_installed_are_timed() -> None:
    both, timer = networks()
    times = times_on_all(both, timer)
    assert [each.runtime for each in times] == ["eager", "onnxruntime"]
    assert times[0].timings[1].mean_ms < times[0].timings[0].mean_ms
    assert times[1].timings[1].mean_ms > times[1].timings[0].mean_ms


def test_a_network_that_is_slower_somewhere_is_reported_with_its_layers() -> None:
    both, timer = networks()
    eager, onnx = times_on_all(both, timer)
    assert why_slower(eager, 1, *both, timer, "auto") == ""
    text = why_slower(onnx, 1, *both, timer, 1)
    assert text.startswith("on onnxruntime the pruned network takes 1.79 times as long as the dense one, mostly in 1")
    assert text.endswith("try prune.round_to = 8.")
    assert 'latency.runtime = "onnxruntime"' in why_slower(onnx, 1, *both, timer, 8)


@pytest.mark.slow
@pytest.mark.trains
def test_the_table_of_a_run_has_every_runtime(tmp_path) -> None:
    result = gator.run(short_recipe("train.epochs=0", "prune.epochs=1"), folder=tmp_path / "run")
    assert result.before.other_runtimes_ms.keys() == {"onnxruntime"}
    rows = [line.split() for line in str(result).splitlines()]
    assert ["onnxruntime", f"{result.before.other_runtimes_ms['onnxruntime']:.2f}"] in [row[:2] for row in rows]


@pytest.mark.parametrize(("ms", "is_missed"), [(4.0, False), (4.1, False), (5.9, True)])
def test_a_latency_budget_that_the_finished_network_misses_is_named(ms: float, is_missed: bool) -> None:
    """It was measured at 0.4 of 10 ms when it was chosen."""
    dense, small = (Figures(90.0, 1, 2, 1, 4, latency_ms=each) for each in (10.0, ms))
    found = _missed(dense, Outcome("target 0.4", "round-1.safetensors", small, 80.0, 90.0, share=0.4))
    assert bool(found) is is_missed
    if is_missed:
        assert found.startswith("target 0.4 is missed: the network was measured at 0.400 of the dense network's time when it")
        assert "takes 0.590 now" in found
