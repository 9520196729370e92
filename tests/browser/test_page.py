"""The report in a real browser: drawn without a network and without a complaint, for eyes, thumbs and keys."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
import studies

from nccltune.report import content, page, source

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings" / "ledgers"
RECORDED = sorted(path.name for path in RECORDINGS.iterdir())
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser on PATH: {', '.join(NAMES)}")
    # Chromium's sandbox refuses to run as root, which is what a container's user is.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=sandbox)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Pages of a study that ships, of one that is hostile, and of the recorded ones."""
    folder = tmp_path_factory.mktemp("pages")
    studies.create(folder / "runs" / "ships")
    studies.create(folder / "runs" / "hostile", HOSTILE)
    found = {name: folder / "runs" / name for name in ("ships", "hostile")} | {n: RECORDINGS / n for n in RECORDED}
    return {
        name: page.write(content.gather(source.find(study)), folder / f"{name}.html") for name, study in found.items()
    }


@pytest.fixture
def open_page(browser, written):
    """Open a page; complaints and requests of any page that was opened are in ``complaints``."""
    opened, complaints = [], []

    def open_page(name, width=1200, **context):
        shown = browser.new_page(viewport={"width": width, "height": 800}, **context)
        shown.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda request: requested(request.url))
        shown.goto(written[name].as_uri())
        shown.wait_for_function("document.querySelectorAll('.plot .main-svg').length > 0")
        opened.append(shown)
        return shown

    def requested(url):
        if url not in {path.as_uri() for path in written.values()}:
            complaints.append(f"request of {url}")

    open_page.complaints = complaints
    yield open_page
    for shown in opened:
        shown.close()
    assert complaints == []


KEPT = "2xh200-resnet-nvlink"
"""Ended with its search: there are no fresh rounds to draw."""


@pytest.mark.parametrize("name", ["ships", *RECORDED])
def test_every_figure_is_drawn(open_page, name):
    shown = open_page(name)
    figures = shown.locator(".plot")
    expected = 2 if name == KEPT else 3
    assert figures.count() == expected
    for index in range(expected):
        assert figures.nth(index).locator(".main-svg").count() >= 1
        assert figures.nth(index).locator(".points path, .errorbar, .lines path").count() >= 1


@pytest.mark.parametrize("name", ["ships", *RECORDED])
@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_window_never_scrolls_sideways(open_page, name, width):
    shown = open_page(name, width=width)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    for box in shown.locator(".plot, header, section").all():
        edges = box.bounding_box()
        assert edges["x"] >= 0
        assert edges["x"] + edges["width"] <= width
    assert shown.evaluate("[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)")


def _column(shown, index):
    return shown.evaluate(
        "(index) => [...document.querySelector('table.sortable').tBodies[0].rows]"
        ".map(row => row.cells[index].dataset.key ?? null)",
        index,
    )


def test_the_trials_are_sorted_by_click_and_by_key(open_page):
    shown = open_page("ships")
    button = shown.get_by_role("button", name="Step", exact=True)
    heading = shown.locator("th", has=button)
    index = heading.evaluate("heading => heading.cellIndex")
    assert heading.get_attribute("aria-sort") == "none"
    button.click()
    assert heading.get_attribute("aria-sort") == "ascending"
    keys = _column(shown, index)
    measured = [float(key) for key in keys if key is not None]
    assert measured == sorted(measured)
    assert keys[len(measured) :] == [None, None], "what has no number stands at the end"
    button.focus()
    shown.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(key) for key in _column(shown, index)[:4]] == measured[::-1]
    assert _column(shown, index)[4:] == [None, None]
    shown.keyboard.press("Shift+Tab")
    shown.keyboard.press("Space")
    state = shown.locator("th", has=shown.get_by_role("button", name="State"))
    assert state.get_attribute("aria-sort") == "ascending"
    assert heading.get_attribute("aria-sort") == "none"
    words = _column(shown, index - 1)
    assert words == sorted(words)
    assert shown.get_by_role("status").inner_text().startswith("Sorted by State")


def _luminance(shown, selector, name):
    """Relative luminance of a colour, as WCAG 2.2 defines it."""
    return shown.evaluate(
        """([selector, name]) => {
          const colour = getComputedStyle(document.querySelector(selector))[name];
          const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(value => value / 255)
            .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
          return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
        }""",
        [selector, name],
    )


def _contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_figures_stand_out_in_light_and_dark(open_page, scheme):
    shown = open_page("ships", color_scheme=scheme)
    paper = _luminance(shown, "body", "backgroundColor")
    assert (paper < 0.05) == (scheme == "dark")
    for selector, name in (
        ("body", "color"),
        ("h1", "color"),
        (".facts dt", "color"),
        ("nav a", "color"),
        ("thead th", "color"),
        (".plot .xtick text", "fill"),
        (".plot .legendtext", "fill"),
    ):
        assert _contrast(_luminance(shown, selector, name), paper) >= 4.5, selector
    assert _contrast(_luminance(shown, "[data-figure=course] .points path", "fill"), paper) >= 3


def test_the_figures_follow_when_the_scheme_changes(open_page):
    shown = open_page("ships", color_scheme="light")
    before = _luminance(shown, ".plot .xtick text", "fill")
    shown.emulate_media(color_scheme="dark")
    shown.wait_for_timeout(300)
    assert before < 0.1
    assert _luminance(shown, ".plot .xtick text", "fill") > 0.6


def test_a_hostile_study_runs_nothing(open_page):
    shown = open_page("hostile")
    shown.locator("[data-figure=course]").hover()
    assert shown.title() == "ship: hostile"
    assert shown.locator("img").count() == 0


def test_the_policy_holds_what_escaping_would_let_through(browser, written, tmp_path):
    text = written["ships"].read_text().replace("<main>", f"<main>{HOSTILE.removeprefix('</script>')}", 1)
    (tmp_path / "page.html").write_text(text)
    shown = browser.new_page()
    refused = []
    shown.on("console", lambda message: refused.append(message.text))
    shown.goto((tmp_path / "page.html").as_uri())
    shown.wait_for_timeout(300)
    assert shown.title() == "ship: ships"
    assert any("Content Security Policy" in text for text in refused)
    shown.close()


def test_headings_and_names_make_sense_to_a_screen_reader(open_page):
    shown = open_page("ships")
    levels = shown.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(each => Number(each.tagName[1]))")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert shown.locator(".plot:not([role=img]), .plot:not([aria-label])").count() == 0
    assert shown.locator("table:not([aria-label])").count() == 0


def test_paper_is_white(open_page):
    shown = open_page("ships", color_scheme="dark")
    shown.emulate_media(media="print")
    assert shown.locator("nav").is_hidden()
    assert _luminance(shown, "body", "color") < 0.05
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown.wait_for_timeout(300)
    assert _luminance(shown, ".plot .xtick text", "fill") < 0.05
    assert shown.pdf().startswith(b"%PDF")
