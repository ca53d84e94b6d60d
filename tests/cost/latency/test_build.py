"""Building tables on a runtime without noise: what is in the table is not measured again, whoever put it there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import pytest
from fakes import BLOCK, small

import gator
from gator.cost.latency.fit import fit_of
from gator.cost.latency.layer_times import LayerTimes
from gator.cost.latency.measuring.builder import Builder
from gator.cost.latency.measuring.missing import Missing
from gator.cost.latency.table import table_file
from gator.cost.latency.table.latency_table import LayerTime, NetworkTime, Table
from gator.cost.latency.widths import kept_of, random_widths


def cost(**settings) -> gator.Latency:
    return gator.Latency("fake", threads=1, **settings)


class Interrupted:
    """Progress that is interrupted after so many reports."""

    def __init__(self, after: int = 10**9) -> None:
        self.after = after
        self.reports: list[tuple[int, int, str]] = []

    def __call__(self, done: int, total: int, what: str) -> None:
        self.reports.append((done, total, what))
        if len(self.reports) > self.after:
            raise KeyboardInterrupt


def rounded(table: Table) -> list[str]:
    """All measurements; times are multiples of a microsecond, up to how the clock rounds."""
    fields = (
        {name: round(v, 6) if isinstance(v, float) else v for name, v in asdict(each).items()} for each in table.measurements
    )
    return sorted(map(str, fields))


def test_what_is_measured_is_kept(fake) -> None:
    model, _, graph = small()
    first = cost().on(model, graph)
    counted, fake.prepared = fake.prepared, 0
    second = cost().on(model, graph)
    assert counted > 100
    assert fake.prepared == 1  # the baseline
    assert first.total([40, 20, 30]) == pytest.approx(second.total([40, 20, 30]))


def test_a_narrower_network_uses_the_same_layers(fake) -> None:
    _, before = cost().build_table(*small()[::2])
    _, after = cost().build_table(*small(40, 20)[::2])
    assert after.measurements[: len(before.measurements)] == before.measurements
    assert {type(each) for each in after.measurements[len(before.measurements) :]} == {NetworkTime}


def test_an_interrupted_build_resumes(fake) -> None:
    """Wherever it was interrupted: what was measured is not measured again, and the table is the same in the end."""
    model, _, graph = small()
    path, empty = cost().find_table(graph)
    progress = Interrupted()
    whole = Builder(model, graph, empty, path.with_name("whole"), progress).build()
    assert whole.steps["conv2d 3x3"].block == BLOCK
    for after in range(1, len(progress.reports), 3):
        with pytest.raises(KeyboardInterrupt):
            Builder(model, graph, cost().find_table(graph)[1], path, Interrupted(after=3)).build()
        _, table = cost().find_table(graph)
        assert Missing(graph, table).anything(layers_only=False), after
    table = Builder(model, graph, cost().find_table(graph)[1], path).build()
    assert not Missing(graph, table).anything(layers_only=False)
    assert rounded(table) == rounded(whole)


def test_an_interrupt_in_a_session_loses_that_session_only(fake) -> None:
    model, _, graph = small()
    fake.breaks_after = 50
    with pytest.raises(KeyboardInterrupt):
        cost().on(model, graph)
    _, before = cost().find_table(graph)
    assert any(isinstance(each, LayerTime) for each in before.measurements)
    fake.breaks_after, fake.prepared = 10**9, 0
    _, after = cost().build_table(model, graph)
    assert after.measurements[: len(before.measurements)] == before.measurements
    layers = [(each.purpose, each.kind, each.full, each.point) for each in after.measurements if isinstance(each, LayerTime)]
    assert len(layers) == len(set(layers))


def test_a_wider_network_looks_for_steps_again(fake) -> None:
    """The narrow one cannot show them. Its layers are timed at other widths then, its whole networks are not measured again."""
    narrow, _, graph = small(6, 6)
    _, before = cost().build_table(narrow, graph)
    assert before.steps_of("conv2d 3x3").block == 1
    model, x, wide = small()
    prices = cost().on(model, wide)
    _, after = cost().find_table(wide)
    assert after.steps["conv2d 3x3"].block == BLOCK
    for widths in random_widths(wide, 5, seed=7):
        network = gator.cut(model, wide, kept_of(wide, widths), verify=False)
        assert prices.total(widths) == pytest.approx(fake.ms(network, ((x,), {})), rel=0.02)
    _, again = cost().build_table(narrow, graph)
    assert {each.purpose for each in again.measurements[len(after.measurements) :]} <= {"grid"}
    assert fit_of(LayerTimes(graph, again), again).mape < 0.02
    fake.prepared = 0
    cost().on(model, wide)
    assert fake.prepared == 1  # the baseline: nothing was lost


def test_two_processes_build_one_table(fake, tmp_path) -> None:
    """The second one waits for the first, and finds what it has measured."""
    model, _, graph = small()
    path, _ = cost().find_table(graph)
    code = "import sys, time; from pathlib import Path; from gator.cost.latency.table.table_file import locked\n"
    code += "with locked(Path(sys.argv[1])): print('in', flush=True); time.sleep(1); Path(sys.argv[2]).touch()"
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path / "left")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        cost().build_table(model, graph)
        assert (tmp_path / "left").exists()
    fake.prepared = 0
    cost().build_table(model, graph)
    assert not fake.prepared


def test_a_table_is_built_into_the_file_that_is_named(fake, tmp_path) -> None:
    model, _, graph = small()
    path = tmp_path / "folder" / "new.json"
    first = cost(table=path).on(model, graph)
    assert not table_file.cache_folder().exists()
    fake.prepared = 0
    second = cost(table=path).on(model, graph)
    assert fake.prepared == 1  # the baseline
    assert first.total([40, 20, 30]) == pytest.approx(second.total([40, 20, 30]))


def test_files_that_cannot_be_read_or_written(fake, tmp_path, monkeypatch) -> None:
    model, _, graph = small()
    with pytest.raises(gator.FileError, match="there is no latency table"):
        cost(table=tmp_path / "none.json", other_device=True).on(model, graph)
    (tmp_path / "weights.json").write_bytes(bytes(range(128, 256)))
    with pytest.raises(gator.FileError, match=r"weights.json cannot be read as a latency table"):
        cost(table=tmp_path / "weights.json").on(model, graph)
    (tmp_path / "file").touch()
    monkeypatch.setenv("GATOR_CACHE", str(tmp_path / "file"))
    with pytest.raises(gator.FileError, match=r"cannot write .*Not a directory.*\n  Set \$GATOR_CACHE"):
        cost().build_table(model, graph)
    assert not fake.prepared


def test_the_cache_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GATOR_CACHE", str(tmp_path))
    assert table_file.cache_folder() == tmp_path / "latency"
    monkeypatch.delenv("GATOR_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name, appauthor: tmp_path / name)
    assert table_file.cache_folder() == tmp_path / "gator" / "latency"


@pytest.mark.parametrize("package", ["scipy", "filelock", "platformdirs"])
def test_the_extra_that_tables_need_is_named(package, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        gator.MissingExtraError, match=rf"a latency table needs {package}; pip install 'torch-gator\[latency\]'"
    ):
        gator.Latency()
    gator.Latency(method="probe")


def test_the_library_is_imported_without_the_extra() -> None:
    code = "import sys, gator\nprint(sorted({'scipy', 'platformdirs'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
