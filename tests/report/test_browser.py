"""The report in a real browser: Debian's Chromium, driven by Playwright. Skipped where one of them is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.made_up import made_up_run, residual_outline

from gator.report.write import write_report

pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([made_up_run(tmp_path_factory.mktemp("runs") / "run", residual_outline(3, 9), rounds=3)])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page that remembers what went wrong and what it asked for."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light", *, script: bool = True) -> None:
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=script)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def scrolled(self) -> None:
        """Scroll through the page, so that every chart is drawn."""
        for chart in self.page.locator("[data-chart]").all():
            chart.scroll_into_view_if_needed()
            self.page.wait_for_function("chart => 'drawn' in chart.dataset", arg=chart.element_handle(), timeout=20_000)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_error_no_request_and_nothing_wider_than_the_screen(browser: Any, report: Path, width: int, scheme: str) -> None:
    opened = Opened(browser, report, width, scheme)
    opened.scrolled()
    assert opened.problems == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [report.as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    wide = "[...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().right > innerWidth).length"
    assert opened.page.evaluate(wide) == 0
    opened.context.close()


def test_pointing_at_an_edge_lights_up_its_members_and_a_click_keeps_them(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    page = opened.page
    edge = page.locator("g.edge").nth(1)  # layer1.0.conv1
    edge.scroll_into_view_if_needed()
    lit = "[...document.querySelectorAll('text.lit')].filter(t => getComputedStyle(t).opacity === '1').map(t => t.textContent)"
    assert page.evaluate(lit) == []
    edge.locator("circle").first.hover()
    assert page.evaluate(lit) == ["layer1.0.conv1", "layer1.0.conv2"]
    assert page.locator(".pointed h3").inner_text() == "layer1.0.conv1"
    assert page.locator("tr[data-edge='1'].lit").count() == 1
    page.locator("h1").hover()
    assert page.evaluate(lit) == []
    edge.locator("circle").first.click()
    page.locator("h1").hover()
    assert page.evaluate(lit) == ["layer1.0.conv1", "layer1.0.conv2"]
    page.locator("tr[data-edge='0']").hover()  # a highway: the stem, nine writers and nine readers, and the next stage
    assert len(page.evaluate(lit)) == 20
    assert "a highway" in page.locator(".pointed").inner_text()
    assert opened.problems == []
    opened.context.close()


def test_pointing_works_without_javascript_and_the_figures_are_there(browser: Any, report: Path) -> None:
    opened = Opened(browser, report, script=False)
    page = opened.page
    assert page.locator(".chart svg").count() == page.locator("[data-chart]").count() > 8
    assert page.locator("table.headline").inner_text().count("latency ms") == 2
    edge = page.locator("g.edge").nth(1)
    edge.locator("circle").first.hover()
    assert [float(name.evaluate("t => getComputedStyle(t).opacity")) for name in edge.locator("text.lit").all()] == [1.0, 1.0]
    opened.context.close()


def test_headings_sort_the_table(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    page = opened.page

    def column(number: int) -> list[str]:
        found: list[str] = page.locator("table.sortable tbody").evaluate(
            "(b, n) => [...b.rows].map(r => r.cells[n].textContent)", number
        )
        return found

    names = column(1)
    page.locator("table.sortable th", has_text="after").first.click()
    after = [int(text) for text in column(4)]
    assert after == sorted(after, reverse=True)
    page.locator("table.sortable th", has_text="after").first.click()
    assert [int(text) for text in column(4)] == sorted(after)
    page.locator("table.sortable th", has_text="edge").click()
    assert column(1) == sorted(names)
    page.locator("table.sortable th", has_text="#").click()
    assert column(1) == names
    opened.context.close()


def test_pointing_at_a_chart_shows_its_figures(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    chart = opened.page.locator("[data-chart='widths']")
    opened.scrolled()
    chart.scroll_into_view_if_needed()
    chart.locator("g.layer_1_marks path").first.hover()
    assert "stem" in opened.page.locator("#tip").inner_text()
    opened.context.close()


def test_the_theme_follows_the_system_and_the_button(browser: Any, report: Path) -> None:
    opened = Opened(browser, report, scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = opened.page.evaluate(paper)
    opened.page.locator("#theme").click()
    light = opened.page.evaluate(paper)
    assert dark != light == "rgb(255, 255, 255)"
    opened.page.reload()
    assert opened.page.evaluate(paper) == light
    opened.context.close()
