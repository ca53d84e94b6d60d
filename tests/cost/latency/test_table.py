"""Tables on a runtime without noise: what they predict, and which ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import BLOCK, small

import gator
from gator.cost.latency.fit import LatencyFit, fit_of
from gator.cost.latency.layer_times import LayerTimes, borders_of
from gator.cost.latency.layers.fused_layers import fused_layers_of
from gator.cost.latency.measuring.missing import Missing
from gator.cost.latency.table import table_file
from gator.cost.latency.table.latency_table import LayerTime, NetworkTime, ReferenceTime, Table
from gator.cost.latency.table.step_patterns import LayerSteps, StepPattern
from gator.cost.latency.table.table_file import as_json, from_json
from gator.cost.latency.table.time_grid import grid_points
from gator.cost.latency.table_prices import TablePrices
from gator.cost.latency.widths import kept_of, random_widths


def cost(**settings) -> gator.Latency:
    return gator.Latency("fake", threads=1, **settings)


def file() -> Path:
    (found,) = table_file.cache_folder().glob("*.json")
    return found


def patterns(monkeypatch, **groups: LayerSteps) -> None:
    """Let all tables have these step patterns, whatever was timed."""
    found = {name.replace("_", " "): steps for name, steps in groups.items()}
    monkeypatch.setattr(Table, "steps_of", lambda self, group: found.get(group, LayerSteps()))
    monkeypatch.setattr(Missing, "series", lambda self: [])


def test_layers_are_divided_with_what_follows_them() -> None:
    _, _, graph = small()
    layers = fused_layers_of(graph)
    assert [s.name for s in layers] == ["stem", "first.0", "first.2", "second.0", "second.2", "head"]
    assert layers[0].full == (0, 64)
    assert layers[1].full == (64, 48)
    assert layers[1].kind == layers[3].kind
    assert layers[2].kind != layers[4].kind  # the mean belongs to the last one
    assert layers[1].at([10, 20, 30]) == (10, 20)
    assert "conv2d 3x3 to 8x8 + add + relu" in layers[2].title


def test_a_kind_does_not_depend_on_widths() -> None:
    one, other = fused_layers_of(small()[2]), fused_layers_of(small(40, 20)[2])
    assert [s.kind for s in one] == [s.kind for s in other]
    assert [s.full for s in one] != [s.full for s in other]


def test_what_layers_pass_to_each_other() -> None:
    _, _, graph = small()
    borders = borders_of(graph, fused_layers_of(graph))
    assert [(border.producer, border.readers) for border in borders] == [
        (0, (1, 2)), (1, (2,)), (2, (3, 4)), (3, (4,)), (4, (5,)),
    ]  # fmt: skip
    assert [border.elements([10, 20, 30]) for border in borders] == [640, 1280, 640, 1920, 10]  # of 8x8, and a mean


def test_borders_count_where_both_sides_are_aligned(fake, monkeypatch) -> None:
    """A layer may read multiples of eight in a layout of their own, and then needs no change of layout."""
    model, _, graph = small()
    steps = LayerSteps(StepPattern(8, 8), StepPattern(8, 1))
    patterns(monkeypatch, conv2d_3x3=steps, linear=steps)
    layers = LayerTimes(graph, cost().build_table(model, graph)[1])
    aligned = (3 * 16 * 64 + 2 * 16 * 64 + 3 * 16 * 64 + 2 * 16 * 64 + 2 * 16) / 1e6
    assert layers.parts([16, 16, 16], 0.0).borders == pytest.approx(aligned)
    # The second layer of the first block reads an unaligned width: nothing is saved around it.
    assert layers.parts([16, 15, 16], 0.0).borders == pytest.approx((2 * 16 * 64 + 2 * 16) / 1e6)
    assert layers.parts([15, 15, 15], 0.0).borders == 0


def test_borders_count_only_beside_layers_with_an_alignment(fake, monkeypatch) -> None:
    """One kind of layer with a layout of its own says nothing about the others."""
    model, _, graph = small()
    patterns(monkeypatch, linear=LayerSteps(StepPattern(8, 8), StepPattern()))
    layers = LayerTimes(graph, cost().build_table(model, graph)[1])
    assert layers.parts([16, 16, 16], 0.0).borders == pytest.approx(2 * 16 / 1e6)  # the mean that the last layer reads
    assert layers.parts([15, 16, 16], 0.0).borders == 0


@pytest.mark.parametrize(("inside", "batch"), [(1.0, 2), (1.3, 2), (1.3, 16)])
def test_predictions_are_exact_where_there_is_no_noise(fake, inside, batch) -> None:
    """With two examples weights are cold, with sixteen they are not."""
    fake.inside = inside
    model, _, graph = small()
    x = torch.zeros(batch, 3, 8, 8)
    prices = cost(batch=batch).on(model, graph)
    assert prices.width_step == BLOCK
    for widths in [*random_widths(graph, 5, seed=7), *random_widths(graph, 5, seed=8, multiple_of=BLOCK)]:
        network = gator.cut(model, graph, kept_of(graph, widths), verify=False)
        assert prices.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)
        assert prices.measure(network, widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=1e-6)


@pytest.mark.parametrize(("unaligned", "block"), [(1.0, 1), (1.02, 1), (1.5, 16)])
def test_widths_are_rounded_only_where_that_pays(fake, monkeypatch, unaligned, block) -> None:
    """Layers whose time grows with every channel, and a little or a lot longer for widths that are no multiples of 16."""
    _, _, graph = small()
    steps = LayerSteps(StepPattern(), StepPattern(16, 16))
    patterns(monkeypatch, conv2d_3x3=steps, linear=steps)

    def ms(point: tuple[int, int]) -> float:
        return max(point[0], 1) * max(point[1], 1) * (1.0 if point[1] % 16 == 0 else unaligned)

    table = (
        cost()
        .find_table(graph)[1]
        .plus(
            LayerTime("grid", s.kind, s.group, s.title, s.full, point, ms(point))
            for s in fused_layers_of(graph)
            for point in grid_points(s.full, steps)
        )
    )
    prices = TablePrices(LayerTimes(graph, table), LatencyFit({}, 0.0, 0.0, 0.0))
    assert prices.width_step == block


def test_a_call_of_the_runtime_is_not_counted_for_every_layer(fake) -> None:
    fake.call_ms = 0.3
    model, x, graph = small()
    prices = cost().on(model, graph)
    for widths in random_widths(graph, 5, seed=7):
        network = gator.cut(model, graph, kept_of(graph, widths), verify=False)
        assert prices.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)


def test_clock_drift_does_not_change_predictions(fake) -> None:
    """The machine is up to twice as slow, differently for every session."""
    fake.drifts = True
    model, x, graph = small()
    prices = cost().on(model, graph)
    scale = prices.total([64, 48, 48]) / fake.ms(model, ((x,), {}))
    for widths in random_widths(graph, 5, seed=7):
        network = gator.cut(model, graph, kept_of(graph, widths), verify=False)
        assert prices.total(widths) == pytest.approx(scale * fake.ms(network, ((x,), {})), rel=0.02)
        assert prices.measure(network, widths) == pytest.approx(scale * fake.ms(network, ((x,), {})), rel=1e-6)


def test_the_unpruned_network_takes_what_it_was_measured_to_take(fake) -> None:
    """However far off the table is; clearly narrower networks are as the table says."""
    model, _, graph = small()
    prices = cost().on(model, graph)
    off = replace(prices, factor=1.2 * prices.factor)
    full, narrow = [64, 48, 48], [32, 24, 24]
    assert off.total(full) == pytest.approx(prices.baseline.ms)
    assert off.total(narrow) == pytest.approx(1.2 * prices.total(narrow))


def test_a_removed_block_takes_no_time(fake) -> None:
    model, x, graph = small()
    prices = cost().on(model, graph)
    kept = {"second.0": []}
    network = gator.cut(model, graph, kept)
    widths = [len(kept.get(edge.name, range(edge.width))) for edge in graph.edges]
    assert prices.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)


def test_a_channel_costs_its_share_of_a_block(fake) -> None:
    """One more of the 48 inner channels of a block: 8 blocks of inputs, 8 of outputs, 128 pixels."""
    model, _, graph = small()
    prices = cost().on(model, graph).per_channel([64, 48, 48])
    assert prices[1] == pytest.approx((8 + 8) * 128 / BLOCK * 1e-3, rel=0.02)
    assert prices[0] == pytest.approx((1 + 4 * 6) * 128 / BLOCK * 1e-3, rel=0.1)  # and the head


def test_groups_of_layers_have_step_patterns_of_their_own(fake) -> None:
    """The linear layer reads in blocks and writes channels that pruning never changes."""
    model, _, graph = small()
    _, table = cost().build_table(model, graph)
    assert {group: (steps.read.block, steps.written.block) for group, steps in table.steps.items()} == {
        "conv2d 3x3": (BLOCK, BLOCK),
        "linear": (BLOCK, 1),
    }


def test_sides_have_step_patterns_of_their_own(fake) -> None:
    fake.reads = 4
    model, _, graph = small()
    steps = cost().build_table(model, graph)[1].steps["conv2d 3x3"]
    assert [(pattern.block, pattern.alignment) for pattern in steps.sides] == [(4, 1), (BLOCK, 1)]


def test_a_table_is_its_measurements(fake) -> None:
    """The file has the key and the measurements; the rest is computed again from them, with the same result."""
    model, _, graph = small()
    _, built = cost().build_table(model, graph)
    data = json.loads(file().read_text())
    assert list(data) == ["format", "key", "measurements"]
    table = table_file.read(file())
    assert table == built
    assert as_json(table) == file().read_text()
    assert table.steps == built.steps
    assert table.grids == built.grids
    result = fit_of(LayerTimes(graph, table), table)
    assert result == fit_of(LayerTimes(graph, built), built)
    assert (result.fitted_on, result.tested_on) == (16, 8)
    assert result.mape < 0.02
    assert result.rank_correlation > 0.99


def test_more_measurements_do_not_change_a_table(fake) -> None:
    """What was computed from fewer stays true of them."""
    model, _, graph = small()
    _, table = cost().build_table(model, graph)
    shorter = Table(table.key, tuple(each for each in table.measurements if not isinstance(each, LayerTime)))
    assert shorter.steps == {}
    longer = shorter.plus(each for each in table.measurements if isinstance(each, LayerTime))
    assert longer.steps == table.steps
    assert shorter.steps == {}


def test_a_table_of_another_device_is_refused_unless_the_user_insists(fake, tmp_path) -> None:
    model, x, graph = small()
    here = cost().on(model, graph)
    theirs = tmp_path / "theirs.json"
    data = json.loads(file().read_text())
    data["key"]["device"] = "a much faster one"
    theirs.write_text(json.dumps(data))
    fake.prepared = 0
    words = r"was measured with another device: a much faster one, here it is .*\n.*other_device=True"
    with pytest.raises(gator.GatorError, match=words):
        cost(table=theirs).on(model, graph)
    prices = cost(table=theirs, other_device=True).on(model, graph)
    assert fake.prepared == 0
    assert prices.total([40, 20, 30]) == pytest.approx(here.total([40, 20, 30]))
    assert prices.measure(model, [64, 48, 48]) is None
    pruner = gator.Pruner(model, x, cost=cost(table=theirs, other_device=True), alpha=1.0)
    with torch.no_grad():
        pruner.gates.alive[8:16] = False
    pruner.shrink_()  # a network without a fit of its own uses that of the network it was cut from
    assert pruner.prices.total([40, 20, 30]) == pytest.approx(here.total([40, 20, 30]))
    with pytest.raises(gator.GatorError, match="no whole networks cut from this one; build it on its device first"):
        cost(table=theirs, other_device=True).on(*small(40, 20)[::2])


def test_other_versions_have_a_table_of_their_own(fake) -> None:
    _, _, graph = small()
    one, _ = cost().find_table(graph)
    fake.version = "2.0"
    other, _ = cost().find_table(graph)
    assert one != other


def test_what_a_table_was_measured_under_is_what_to_ask_for(fake, tmp_path) -> None:
    model, _, graph = small()
    cost(batch=4, table=tmp_path / "table.json").build_table(model, graph)
    words = r"another batch: 4, here it is 2\n  Build one here .*, ask for the same batch"
    with pytest.raises(gator.GatorError, match=words):
        cost(table=tmp_path / "table.json").on(model, graph)


GOOD = [
    ReferenceTime(1.0),
    LayerTime("grid", "kind", "conv2d", "title", (3, 4), (1, 2), 0.5),
    NetworkTime("name", "title", (3, 4), True, 1.0, 2.0),
]


@pytest.mark.parametrize("each", GOOD)
@pytest.mark.parametrize("wrong", ["missing", None, "text", [], {}, -1.0])
def test_damaged_measurements_are_refused(fake, tmp_path, each, wrong) -> None:
    """Times must be numbers above zero."""
    model, _, graph = small()
    table = cost().find_table(graph)[1].plus([each])
    text = as_json(table)
    assert from_json(text, "here") == table
    data = json.loads(text)
    if wrong == "missing":
        del data["measurements"][0]["ms"]
    else:
        data["measurements"][0]["ms"] = wrong
    (tmp_path / "bad.json").write_text(json.dumps(data))
    with pytest.raises(gator.FileError, match="is not a latency table"):
        cost(table=tmp_path / "bad.json").on(model, graph)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 1}', "build it again"),
        ('{\n "format": 6,\n "key": {}\n}', "build it again"),
        ('{"format": 7}', "is not a latency table"),
        ('{"format": "six"}', "is not a latency table"),
        ("[]", "is not a latency table"),
        ('{"format": 99}', "upgrade gator"),
    ],
)
def test_files_of_another_format(fake, tmp_path, text, words) -> None:
    model, _, graph = small()
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(gator.FileError, match=words):
        cost(table=tmp_path / "table.json").on(model, graph)
    assert not fake.prepared
