"""Tables on a runtime without noise: what they predict, what is timed when, and which ones are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import BLOCK, small
from hypothesis import given
from hypothesis import strategies as st

import gator
from gator.cost.latency import store
from gator.cost.latency.build import Builder
from gator.cost.latency.calibrate import BORDERS, applied, fitted
from gator.cost.latency.draws import drawn_widths, kept_of
from gator.cost.latency.grid import Entry, points_of
from gator.cost.latency.predict import Layers, Tabled
from gator.cost.latency.segments import borders_of, segments_of
from gator.cost.latency.steps import Step, Steps, fine_widths, step_of
from gator.cost.latency.table import Calibration, Table


def cost(**settings) -> gator.Latency:
    return gator.Latency("fake", threads=1, **settings)


def file(fake) -> Path:
    (found,) = (store.cache_folder() / "latency").glob("*.json")
    return found


def test_layers_are_divided_with_what_follows_them() -> None:
    _, _, graph = small()
    segments = segments_of(graph)
    assert [s.name for s in segments] == ["stem", "first.0", "first.2", "second.0", "second.2", "head"]
    assert segments[0].whole == (0, 64)
    assert segments[1].whole == (64, 48)
    assert segments[1].kind == segments[3].kind
    assert segments[2].kind != segments[4].kind  # the mean belongs to the last one
    assert segments[1].sizes([10, 20, 30]) == (10, 20)
    assert "conv2d 3x3 to 8x8 + add + relu" in segments[2].title


def test_what_layers_hand_to_each_other() -> None:
    _, _, graph = small()
    borders = borders_of(graph, segments_of(graph))
    assert [(border.maker, border.readers) for border in borders] == [(0, (1, 2)), (1, (2,)), (2, (3, 4)), (3, (4,)), (4, (5,))]
    assert [border.elements([10, 20, 30]) for border in borders] == [640, 1280, 640, 1920, 10]  # of 8x8, and a mean


def test_borders_count_where_both_sides_are_even(fake) -> None:
    """A layer may read multiples of eight in a layout of their own, and is then spared the change."""
    model, _, graph = small()
    cost().on(model, graph)
    table = store.read(file(fake))
    table.steps = dict.fromkeys(table.steps, Steps(Step(8, 8, seen=64), Step(8, 1, seen=64)))
    Builder(model, graph, table, file(fake)).time_layers()
    layers = Layers(graph, segments_of(graph), table)
    even = (3 * 16 * 64 + 2 * 16 * 64 + 3 * 16 * 64 + 2 * 16 * 64 + 2 * 16) / 1e6
    assert layers.parts([16, 16, 16], 0.0)[BORDERS] == pytest.approx(even)
    # The second layer of the first block reads what is uneven: nothing is spared around it.
    assert layers.parts([16, 15, 16], 0.0)[BORDERS] == pytest.approx((2 * 16 * 64 + 2 * 16) / 1e6)
    assert layers.parts([15, 15, 15], 0.0)[BORDERS] == 0


def test_borders_count_only_beside_layers_that_tell_widths_apart(fake) -> None:
    """One kind of layer with a layout of its own says nothing of the others."""
    model, _, graph = small()
    cost().on(model, graph)
    table = store.read(file(fake))
    table.steps = dict.fromkeys(table.steps, Steps(Step(1, 1, seen=64), Step(1, 1, seen=64)))
    table.steps["linear"] = Steps(Step(8, 8, seen=64), Step(1, 1, seen=64))
    Builder(model, graph, table, file(fake)).time_layers()
    layers = Layers(graph, segments_of(graph), table)
    assert layers.parts([16, 16, 16], 0.0)[BORDERS] == pytest.approx(2 * 16 / 1e6)  # the mean that the last layer reads
    assert layers.parts([15, 16, 16], 0.0)[BORDERS] == 0


@pytest.mark.parametrize(("border", "rest"), [(0.0, 0.0), (2.0, 0.0), (0.0, 3.0), (2.0, 3.0)])
def test_what_a_network_saves_is_found(border, rest) -> None:
    """And what it does not save stays out, noise or not."""
    draw = np.random.default_rng(0)
    parts = [{"3x3": draw.uniform(10, 99), "1x1": draw.uniform(10, 99), BORDERS: draw.uniform(0, 5)} for _ in range(20)]
    exact = [1.2 * (part["3x3"] + part["1x1"]) - border * part[BORDERS] + rest for part in parts]
    factors, constant, error = fitted(parts, [time * draw.normal(1, 0.002) for time in exact])
    assert factors["3x3"] == pytest.approx(1.2, rel=0.02)
    assert factors["1x1"] == pytest.approx(1.2, rel=0.02)
    assert factors[BORDERS] == pytest.approx(-border, rel=0.2)
    assert constant == pytest.approx(rest, rel=0.2)
    assert error < 0.003**2


def test_savings_never_eat_up_the_layers() -> None:
    factors = {"3x3": 1.0, BORDERS: -5.0}
    assert applied({"3x3": 1.0, BORDERS: 10.0}, factors, 0.5) == pytest.approx(0.7)
    assert applied({"3x3": 1.0, BORDERS: 0.1}, factors, 0.5) == pytest.approx(1.0)
    assert applied({"3x3": 1.0, BORDERS: 10.0}, {"3x3": 1.0}, 0.5) == pytest.approx(1.5)  # of a table without borders


def test_a_kind_does_not_depend_on_widths() -> None:
    one, other = segments_of(small()[2]), segments_of(small(40, 20)[2])
    assert [s.kind for s in one] == [s.kind for s in other]
    assert [s.whole for s in one] != [s.whole for s in other]


@pytest.mark.parametrize(("inside", "batch"), [(1.0, 2), (1.3, 2), (1.3, 16)])
def test_predictions_are_exact_where_there_is_no_noise(fake, inside, batch) -> None:
    """With two examples weights are waited for, with sixteen they are not."""
    fake.inside = inside
    model, _, graph = small()
    x = torch.zeros(batch, 3, 8, 8)
    priced = cost(batch=batch).on(model, graph)
    assert priced.width_step == BLOCK
    for widths in [*drawn_widths(graph, 5, seed=7), *drawn_widths(graph, 5, seed=8, block=BLOCK)]:
        network = gator.cut(model, graph, kept_of(graph, widths), verify=False)
        assert priced.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)
        assert priced.measure(network, widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=1e-6)


@pytest.mark.parametrize(("uneven", "block"), [(1.0, 1), (1.02, 1), (1.5, 16)])
def test_steps_that_do_not_pay_are_not_taken(fake, uneven, block) -> None:
    """Layers that take as long as their channels say, and a little or a lot longer where those are no multiples of 16."""
    _, _, graph = small()
    segments, steps = segments_of(graph), Steps(Step(1, 1), Step(16, 16))

    def ms(point: tuple[int, int]) -> float:
        return max(point[0], 1) * max(point[1], 1) * (1.0 if point[1] % 16 == 0 else uneven)

    table = replace(cost().found_for(graph)[1], steps={s.group: steps for s in segments}, entries={})
    for segment in segments:
        times = {point: ms(point) for point in points_of(segment.whole, steps)}
        table.entries[segment.kind, segment.whole] = Entry(segment.kind, segment.title, segment.whole, times)
    factors = {group: 1.0 for s in segments for group in (s.group, s.group + ", uneven")}
    assert Tabled(Layers(graph, segments, table), Calibration(factors, 0.0, 0.0, "", 1.0, 0, 0, 0.0, 1.0)).width_step == block


def test_what_a_call_costs_is_not_counted_for_every_layer(fake) -> None:
    fake.call_ms = 0.3
    model, x, graph = small()
    priced = cost().on(model, graph)
    for widths in drawn_widths(graph, 5, seed=7):
        network = gator.cut(model, graph, kept_of(graph, widths), verify=False)
        assert priced.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)


def test_a_machine_that_is_now_faster_now_slower(fake) -> None:
    """Up to twice, another way for every few layers that are timed: what is said of networks does not change."""
    fake.uneven = True
    model, x, graph = small()
    priced = cost().on(model, graph)
    whole = priced.total([64, 48, 48]) / fake.ms(model, ((x,), {}))
    for widths in drawn_widths(graph, 5, seed=7):
        network = gator.cut(model, graph, kept_of(graph, widths), verify=False)
        assert priced.total(widths) == pytest.approx(whole * fake.ms(network, ((x,), {})), rel=0.02)
        assert priced.measure(network, widths) == pytest.approx(whole * fake.ms(network, ((x,), {})), rel=1e-6)


def test_the_network_itself_takes_what_it_was_measured_to_take(fake) -> None:
    """However far off the table is; networks that are clearly narrower are as the table says."""
    model, _, graph = small()
    priced = cost().on(model, graph)
    off = replace(priced, factor=1.2 * priced.factor)
    whole, narrow = [64, 48, 48], [32, 24, 24]
    assert off.total(whole) == pytest.approx(priced.reference.ms)
    assert off.total(narrow) == pytest.approx(1.2 * priced.total(narrow))


def test_a_block_that_is_gone_costs_nothing(fake) -> None:
    model, x, graph = small()
    priced = cost().on(model, graph)
    kept = {"second.0": []}
    network = gator.cut(model, graph, kept)
    widths = [len(kept.get(edge.name, range(edge.width))) for edge in graph.edges]
    assert priced.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)


def test_a_channel_costs_its_share_of_a_block(fake) -> None:
    """One more of the 48 inside channels of a block: 8 blocks of inputs, 8 of outputs, 128 pixels."""
    model, _, graph = small()
    prices = cost().on(model, graph).per_channel([64, 48, 48])
    assert prices[1] == pytest.approx((8 + 8) * 128 / BLOCK * 1e-3, rel=0.02)
    assert prices[0] == pytest.approx((1 + 4 * 6) * 128 / BLOCK * 1e-3, rel=0.1)  # and the head


def test_what_is_timed_is_kept(fake) -> None:
    model, _, graph = small()
    first = cost().on(model, graph)
    counted, fake.prepared = fake.prepared, 0
    second = cost().on(model, graph)
    assert counted > 100
    assert fake.prepared == 1  # the network itself
    assert first.total([40, 20, 30]) == pytest.approx(second.total([40, 20, 30]))


def test_a_narrower_network_uses_the_same_layers(fake) -> None:
    model, _, graph = small()
    cost().on(model, graph)
    entries = json.loads(file(fake).read_text())["entries"]
    fake.prepared = 0
    model, _, graph = small(40, 20)
    cost().on(model, graph)
    assert json.loads(file(fake).read_text())["entries"] == entries
    assert fake.prepared <= 1 + 1 + 2 * 24  # whole networks alone


def test_a_build_that_was_stopped_goes_on(fake) -> None:
    model, _, graph = small()
    fake.breaks_after = 150
    with pytest.raises(KeyboardInterrupt):
        cost().on(model, graph)
    before = json.loads(file(fake).read_text())
    timed = sum(len(entry["ms"]) for entry in before["entries"])
    assert [step["block"] for step in before["steps"]["conv2d 3x3"].values()] == [BLOCK, BLOCK]
    assert timed > 0
    fake.breaks_after, fake.prepared = 10**9, 0
    told = []
    path, table = cost().found_for(graph)
    Builder(model, graph, table, path, lambda *what: told.append(what)).build()
    assert fake.prepared < 150
    assert told[0][:2] == (0, sum(len(e.ms) for e in table.entries.values()) - timed)
    assert told[-1][2] == "whole networks, again"


def test_whole_networks_that_were_measured_are_not_measured_again(fake) -> None:
    model, _, graph = small()
    path, table = cost().found_for(graph)
    heard: list[str] = []

    def stopped(done: int, total: int, what: str) -> None:
        heard.append(what)
        if (done, what) == (30, "whole networks, again"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Builder(model, graph, table, path, stopped).build()
    _, again = cost().found_for(graph)
    (begun,) = again.begun.values()
    assert len(begun) == 30
    fake.prepared, told = 0, []
    Builder(model, graph, again, path, lambda *what: told.append(what)).build()
    assert [done for done, *_ in told] == list(range(30, 48, 3))
    assert fake.prepared == 1 + 18  # the network itself, and those that were left
    assert not again.begun
    whole = Table(table.key)
    Builder(model, graph, whole, path.with_name("other.json")).build()
    assert whole.timed == again.timed


def test_two_processes_build_one_table(fake, tmp_path) -> None:
    """The second one waits for the first, and finds what it has timed."""
    model, _, graph = small()
    path, _ = cost().found_for(graph)
    code = "import sys, time; from pathlib import Path; from gator.cost.latency.store import locked\n"
    code += "with locked(Path(sys.argv[1])): print('in', flush=True); time.sleep(1); Path(sys.argv[2]).touch()"
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path / "left")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        cost().built(model, graph)
        assert (tmp_path / "left").exists()
    fake.prepared = 0
    cost().built(model, graph)
    assert not fake.prepared


def test_files_that_cannot_be_read_or_written(fake, tmp_path, monkeypatch) -> None:
    model, _, graph = small()
    (tmp_path / "weights.json").write_bytes(bytes(range(128, 256)))
    with pytest.raises(gator.FileError, match=r"weights.json cannot be read as a latency table"):
        gator.Latency("fake", threads=1, table=tmp_path / "weights.json").on(model, graph)
    (tmp_path / "file").touch()
    monkeypatch.setenv("GATOR_CACHE", str(tmp_path / "file"))
    with pytest.raises(gator.FileError, match=r"cannot be written: Not a directory\n  Set \$GATOR_CACHE"):
        cost().built(model, graph)
    assert not fake.prepared


def test_to_json_and_back(fake) -> None:
    model, _, graph = small()
    cost().on(model, graph)
    text = file(fake).read_text()
    table = Table.from_json(text, "here")
    assert json.loads(table.to_json()) == json.loads(text)
    (calibration,) = table.calibrations.values()
    assert calibration.unseen == 8
    assert calibration.mape < 0.02
    assert calibration.spearman > 0.99


def test_a_table_of_another_device_is_refused_unless_one_insists(fake, tmp_path) -> None:
    model, x, graph = small()
    here = cost().on(model, graph)
    data = json.loads(file(fake).read_text())
    data["key"]["device"] = "a much faster one"
    (tmp_path / "theirs.json").write_text(json.dumps(data))
    fake.prepared = 0
    with pytest.raises(gator.GatorError, match=r"is of another device: a much faster one, here it is .*\n.*other_device=True"):
        cost(table=tmp_path / "theirs.json").on(model, graph)
    priced = cost(table=tmp_path / "theirs.json", other_device=True).on(model, graph)
    assert fake.prepared == 0
    assert priced.total([40, 20, 30]) == pytest.approx(here.total([40, 20, 30]))
    assert not hasattr(priced, "measured")
    pruner = gator.Pruner(model, x, cost=cost(table=tmp_path / "theirs.json", other_device=True), alpha=1.0)
    with torch.no_grad():
        pruner.gates.alive[8:16] = False
    pruner.shrink_()  # a network without a calibration of its own adds up as the one it came from
    assert pruner.prices.total([40, 20, 30]) == pytest.approx(here.total([40, 20, 30]))
    model, _, graph = small()
    with pytest.raises(gator.GatorError, match="no calibration of this network"):
        cost(table=tmp_path / "theirs.json", other_device=True).on(*small(40, 20)[::2])


def test_other_versions_have_a_table_of_their_own(fake) -> None:
    _, _, graph = small()
    one, _ = cost().found_for(graph)
    fake.version = "2.0"
    other, _ = cost().found_for(graph)
    assert one != other


def test_files_that_are_no_tables(tmp_path, fake) -> None:
    model, _, graph = small()
    with pytest.raises(gator.FileError, match="there is no latency table"):
        cost(table=tmp_path / "none.json").on(model, graph)
    (tmp_path / "old.json").write_text('{"format": 1}')
    with pytest.raises(gator.FileError, match="build it again"):
        cost(table=tmp_path / "old.json").on(model, graph)
    (tmp_path / "bad.json").write_text('{"format": 5}')
    with pytest.raises(gator.FileError, match="is not a latency table"):
        cost(table=tmp_path / "bad.json").on(model, graph)
    (tmp_path / "new.json").write_text('{"format": 99}')
    with pytest.raises(gator.FileError, match="upgrade gator"):
        cost(table=tmp_path / "new.json").on(model, graph)


def test_grid_by_hand() -> None:
    """Full blocks on either side, widths that do not fill theirs, and a few of both kinds."""
    steps = Steps(Step(8, 8), Step(8, 8))
    points = list(points_of((0, 48), steps))
    assert [p for p in points if p[1] % 8 == 0] == [(0, 8), (0, 16), (0, 32), (0, 48)]
    assert sorted(p for p in points if p[1] % 8) == [(0, 5), (0, 13), (0, 29), (0, 45)]
    assert list(points_of((0, 3), Steps(Step(1, 1), Step(1, 1)))) == [(0, 1), (0, 2), (0, 3)]
    padded = Steps(Step(4, 4), Step(8, 1))
    assert list(points_of((0, 48), padded)) == [(0, 8), (0, 16), (0, 32), (0, 48)]  # all widths are as good
    assert list(points_of((12, 0), padded)) == [(4, 0), (8, 0), (12, 0), (3, 0), (7, 0), (11, 0)]
    assert padded.fills((12, 7)) == (True, True)
    assert padded.fills((10, 8)) == (False, True)
    assert padded.blocks((12, 7)) == (3, 1)
    assert padded.blocks((10, 7)) == (2.5, 1)
    assert Step(8, 4).blocks(12) == 2
    assert padded.block == 8
    entry = Entry("k", "title", (0, 48), {p: p[1] / 8 + (2.0 if p[1] % 8 else 0.0) for p in points})
    assert entry.at((0, 40), steps) == pytest.approx(5.0)
    assert entry.at((0, 33), steps) == pytest.approx(33 / 8 + 2)
    assert entry.smooth((0, 20), steps) == pytest.approx(2.5)
    assert entry.covers((0, 40))
    assert not entry.covers((3, 40))


def test_more_channels_never_take_less_time() -> None:
    steps = Steps(Step(8, 8), Step(8, 8))
    noisy = Entry("k", "title", (0, 48), {p: 1.0 + (0.2 if p[1] == 32 else 0.0) for p in points_of((0, 48), steps)})
    times = [noisy.at((0, width), steps) for width in (8, 16, 24, 32, 40, 48)]
    assert times == sorted(times)


@pytest.mark.parametrize(("block", "even"), [(1, 1), (4, 1), (8, 1), (8, 4), (8, 8), (16, 1), (32, 4)])
@pytest.mark.parametrize("padded", [True, False])
def test_steps_are_found_under_noise(block, even, padded) -> None:
    """Widths that are not even take a fifth longer than the full block, or than their channels would."""
    noise = np.random.default_rng(0)

    def time(width: int) -> float:
        full = -(-width // block) * block
        longer = 1.2 * (1.0 + full) if padded else 1.0 + 1.2 * width
        return (longer if width % even else 1.0 + full) * noise.normal(1, 0.03)

    series = [{w: time(w) for w in range(first, first + 33)} for first in (32, 32, 32)]
    found = step_of(series)
    assert (found.block, found.even) == (block, even)


@pytest.mark.parametrize(("first", "last"), [(32, 64), (16, 48), (24, 56)])
def test_blocks_that_are_taken_several_at_a_time(first, last) -> None:
    """A last block by itself takes as long as two, whatever width the series begins with and however long a layer takes."""
    noise, taken = np.random.default_rng(0), (2.0, 2.5, 3.0, 4.0)

    def time(width: int, scale: float) -> float:
        full, rest = divmod(-(-width // 8), 4)
        return (1.0 + scale * (4 * full + (taken[rest - 1] if rest else 0.0))) * noise.normal(1, 0.01)

    step = step_of([{w: time(w, scale) for w in range(first, last + 1)} for scale in (0.5, 2.0)])
    assert (step.block, step.even) == (8, 1)
    assert step.levels == pytest.approx(taken, abs=0.2)
    assert step.blocks(64) == step.blocks(57) == 8
    assert step.blocks(33) == step.blocks(40) == pytest.approx(6, abs=0.2)
    assert step.blocks(512) == 64


def test_blocks_that_take_the_same_do_not_stop_a_prediction() -> None:
    """Noise may say that a second block takes nothing, or that a third takes as long as all four."""
    times = {width: (1.0, 3.0, 2.9, 5.1, 5.0)[-(-width // 8) - 4] for width in range(32, 65)}
    step = step_of([times])
    assert step.block == 8
    assert list(step.levels) == sorted(set(step.levels))
    steps = Steps(Step(1, 1), step)
    for whole in (16, 24, 32, 64):
        entry = Entry("k", "title", (0, whole), {p: float(p[1]) for p in points_of((0, whole), steps)})
        assert all(0 < entry.at((0, width), steps) <= whole + 1e-9 for width in range(1, whole + 1))


def test_a_channel_costs_its_share_however_blocks_are_taken() -> None:
    """Of a narrow layer whose second block takes hardly longer than its first."""
    steps = Steps(Step(1, 1), Step(8, 1, (2.9, 3.0, 3.7, 4.0)))
    entry = Entry("k", "title", (0, 16), {(0, 8): 1.0, (0, 16): 1.1})
    assert entry.smooth((0.0, 16.0), steps) == pytest.approx(1.1)
    assert entry.smooth((0.0, 12.0), steps) - entry.smooth((0.0, 8.0), steps) == pytest.approx(0.05)


def test_a_wider_network_looks_for_steps_again(fake) -> None:
    """The narrow one cannot see them; what it was calibrated with goes, its measured networks stay."""
    narrow, _, graph = small(6, 6)
    cost().on(narrow, graph)
    before = store.read(file(fake))
    assert before.steps["conv2d 3x3"].block == 1
    model, x, wide = small()
    priced = cost().on(model, wide)
    after = store.read(file(fake))
    assert after.steps["conv2d 3x3"].block == BLOCK
    assert list(after.calibrations) == [name for name in after.timed if name not in before.timed]
    for widths in drawn_widths(wide, 5, seed=7):
        network = gator.cut(model, wide, kept_of(wide, widths), verify=False)
        assert priced.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)
    cost().on(narrow, graph)
    assert len(store.read(file(fake)).calibrations) == 2
    fake.prepared = 0
    cost().on(model, wide)
    assert fake.prepared == 1  # nothing was lost


def test_layers_narrower_than_a_period_say_nothing_of_it() -> None:
    assert step_of([{width: -(-width // 8) * 8.0 for width in range(1, 25)}]).levels == ()


def test_groups_of_layers_have_steps_of_their_own(fake) -> None:
    """The linear layer reads in blocks and writes what never changes."""
    model, _, graph = small()
    cost().on(model, graph)
    found = store.read(file(fake)).steps
    assert {group: (steps.read.block, steps.written.block) for group, steps in found.items()} == {
        "conv2d 3x3": (BLOCK, BLOCK),
        "linear": (BLOCK, 1),
    }


def test_sides_have_steps_of_their_own(fake) -> None:
    fake.reads = 4
    model, _, graph = small()
    cost().on(model, graph)
    steps = store.read(file(fake)).steps["conv2d 3x3"]
    assert [(step.block, step.even) for step in steps.sides] == [(4, 1), (BLOCK, 1)]


def test_layers_that_do_not_notice_their_width_have_no_steps() -> None:
    assert step_of([dict.fromkeys(range(32, 65), 1.0)]) == Step(1, 1, seen=64)
    assert step_of([]) == Step(1, 1)


@given(st.sampled_from([(b, e) for b in (1, 4, 8, 16, 32) for e in (1, 2, 4, 8, 16) if e <= b]), st.integers(1, 300))
def test_something_is_timed_of_every_width(step, whole) -> None:
    """And of what is even and what is not, wherever there is room for both."""
    found = list(points_of((0, whole), Steps(Step(1, 1), Step(*step))))
    assert found
    assert all(1 <= size <= whole for _, size in found)
    block, even = step
    if whole >= 2 * block and even > 1:
        assert {size % even == 0 for _, size in found} == {True, False}


def test_layers_that_hide_their_blocks_do_not_decide() -> None:
    """They hardly notice how wide they are."""
    shows = {width: -(-width // 8) * 8.0 for width in range(1, 33)}
    hides = {width: 100.0 + width // 16 for width in range(33, 65)}
    assert step_of([shows, hides, hides]).block == 8


def test_steps_are_looked_for_where_they_can_be_seen() -> None:
    assert fine_widths(16) == list(range(1, 17))
    assert fine_widths(48) == list(range(16, 49))
    assert fine_widths(2048) == fine_widths(64) == list(range(32, 65))
