"""Footprints: by hand, against torch's own counter, and against the graph's prediction."""

import pytest
import torch
from networks import CASES
from support import draw, run
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import gator
from gator import zoo
from gator.cost.measure import layer_costs
from gator.cost.timing import involuntary_switches, timed


def test_by_hand() -> None:
    net = nn.Conv2d(3, 4, 3)
    footprint = gator.measure(net, torch.zeros(1, 3, 8, 8))
    assert (footprint.macs, footprint.flops) == (3_888, 7_776)
    assert (footprint.params, footprint.bytes) == (112, 448)
    assert footprint.latency_ms is None
    assert gator.measure(net, torch.zeros(5, 3, 8, 8)).macs == 5 * 3_888
    assert str(footprint) == "3,888 MACs (7,776 FLOPs), 112 parameters, 448 bytes"


# torch's counter does not see into oneDNN's recurrent kernels nor bilinear; spectral norm multiplies once more.
UNCOUNTED = ("lstm", "lstm_with_projection", "bilinear_layer", "spectral_norm")


@pytest.mark.parametrize("name", [n for n in CASES if n not in UNCOUNTED])
def test_against_torch(name: str) -> None:
    """torch counts two FLOPs a multiply-add."""
    model, inputs, _ = CASES[name]()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            run(model, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    macs = gator.measure(model, inputs).macs
    assert macs == gator.trace(model, inputs).macs
    assert counter.get_total_flops() == 2 * macs


def test_recurrent_layers_by_hand() -> None:
    """Four gates, two directions: 5 steps of 2 examples, (6 + 8) inputs and 8 units in each of two layers."""
    first, second = 4 * 8 * (6 + 8), 4 * 8 * (16 + 8)
    assert gator.measure(nn.LSTM(6, 8, 2, bidirectional=True), torch.zeros(5, 2, 6)).macs == 10 * 2 * (first + second)


def test_latency_is_measured_and_says_how() -> None:
    model, x, _ = CASES["unet"]()
    model.train()
    footprint = gator.measure(model, x, latency=True, rounds=5)
    assert footprint.latency_ms > 0
    assert (footprint.timing.rounds, footprint.timing.threads) == (5, torch.get_num_threads())
    assert model.training
    assert "ms +-" in str(footprint)


def test_turns_are_taken() -> None:
    order = []
    one, two = timed([lambda: order.append(1), lambda: order.append(2)], rounds=20, warmup=1)
    turns = list(zip(order[::2], order[1::2], strict=True))
    assert set(turns) == {(1, 2), (2, 1)}  # now the one first, now the other, never one twice
    assert one.rounds == two.rounds == 20 == len(turns) - 1


def test_nobody_always_follows_what_empties_the_caches() -> None:
    now, cold = 0.0, False

    def large() -> None:
        nonlocal now, cold
        now, cold = now + 10.0, True

    def small() -> None:
        nonlocal now, cold
        now, cold = now + (4.0 if cold else 1.0), False

    _, *others = timed([large, *[small] * 8], rounds=40, warmup=0, clock=lambda: now, switches=lambda: 0)
    assert [other.median_ms for other in others] == [other.mean_ms for other in others] == [pytest.approx(1000.0)] * 8


class LoadedMachine:
    """Every 8 ms of work another process gets the processor for 4 ms, as on two cores with three busy processes."""

    now = 0.0
    preempted = 0
    worked = 0.0

    def work(self, ms: float) -> None:
        self.worked += ms
        waits, self.worked = divmod(self.worked, 8.0)
        self.preempted += int(waits)
        self.now += (ms + 4.0 * waits) / 1e3


@pytest.mark.parametrize(("large", "small"), [(2.4, 1.4), (0.9, 0.3), (5.0, 0.5), (12.0, 5.0), (60.0, 9.0)])
def test_a_loaded_machine_compares_networks_as_an_idle_one_does(large: float, small: float) -> None:
    """A wait of 4 ms is far off for the small network and is not for the large one."""
    machine = LoadedMachine()
    runs = [lambda: machine.work(large), lambda: machine.work(small), lambda: machine.work(1.23)]
    found = timed(runs, rounds=200, warmup=0, clock=lambda: machine.now, switches=lambda: machine.preempted)
    assert found[1].mean_ms / found[0].mean_ms == pytest.approx(small / large, rel=0.06)


def test_preemption_is_counted_where_the_system_tells() -> None:
    before = involuntary_switches()
    assert isinstance(before, int)
    assert involuntary_switches() >= before


def test_prediction_equals_count_after_a_cut() -> None:
    model, x, _ = CASES["group_norm_unet"]()
    graph = gator.trace(model, x)
    assert gator.predict_macs(graph, {}) == graph.macs
    for share in (0.25, 0.5):
        kept = draw(graph, share)
        assert gator.measure(gator.cut(model, graph, kept), x).macs == gator.predict_macs(graph, kept)


def test_the_costs_of_layers_add_up_also_after_a_cut() -> None:
    model = zoo.build("digits:resnet").model.eval()
    x = torch.zeros(1, 1, 8, 8)
    layers = layer_costs(model, x)
    assert [layer.name for layer in layers[:2]] == ["stem", "blocks.0.conv1"]
    assert layers[0].macs == 24 * 9 * 64
    assert layers[0].params == 24 * 9 + 24
    kept = {"stem": range(7), "blocks.1.conv1": []}
    small = gator.cut(model, gator.trace(model, x), kept)
    for network in (model, small):
        counted = gator.measure(network, x)
        assert sum(layer.macs for layer in layer_costs(network, x)) == counted.macs
        assert sum(layer.params for layer in layer_costs(network, x)) == counted.params
    assert "blocks.1.conv1" not in [layer.name for layer in layer_costs(small, x) if layer.macs]
