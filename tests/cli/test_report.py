"""`gator report`, `gator inspect --html` and the last line of `gator prune`: what they write and what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli.test_prune import gator
from report.made_up import made_up_run, residual_outline

from gator.cli.report import report_line
from gator.report.write import write_report

pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")


@pytest.mark.slow
def test_the_report_command_says_where_the_files_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_up_run(tmp_path / name, residual_outline(2, 2))
    done = gator("report", "one", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "report: one/report.html; figures: one/report-figures"
    (tmp_path / "there").mkdir()
    assert write_report([tmp_path / "one"], out=tmp_path / "there") == tmp_path / "there" / "report.html"
    done = gator("report", "one", "two", folder=tmp_path)
    assert done.stdout.strip() == "report: report.html; figures: report-figures"
    assert (tmp_path / "report-figures" / "2-widths.svg").is_file()


@pytest.mark.slow
def test_a_folder_that_is_no_run_is_one_clear_message(tmp_path: Path) -> None:
    done = gator("report", "nothing", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == "gator: nothing is not a run folder: it has no recipe.toml"


@pytest.mark.slow
def test_inspect_writes_a_page(tmp_path: Path) -> None:
    done = gator("inspect", "digits:resnet", "--html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "page: digits-resnet.html; figures: digits-resnet-figures"
    assert "6 edges" in (tmp_path / "digits-resnet.html").read_text()


def test_a_run_without_the_extra_says_how_to_get_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_up_run(tmp_path / "run", residual_outline(2, 2))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert report_line(str(folder)) == f"no report: pip install 'torch-gator[report]', then run: gator report {folder}"
