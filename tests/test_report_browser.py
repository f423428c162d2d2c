"""The report in a browser: as it is shown, in both themes, on a desk and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from momentex.ablations import exchanges
from momentex.comparison.analysis import analyse
from momentex.report import html
from momentex.report.compared import document
from momentex.report.swept import document as swept_document
from momentex.train.recipe import Recipe
from tests.reports import AWKWARD
from tests.sweeps import swept

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the path: apt-get install chromium"),
]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}


@dataclass
class Shown:
    """A page that was opened, and what the browser had to say about it."""

    page: object
    told: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def value(self, script: str) -> object:
        return self.page.evaluate(script)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with driver.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def show(browser, tmp_path: Path):
    pages = []

    def opened(name: str, *, scheme: str = "light", size: dict[str, int] = DESK, text: str | None = None) -> Shown:
        file = tmp_path / "report.html"
        file.write_text(text or html.render(AWKWARD[name], analyse(AWKWARD[name])), encoding="utf8")
        page = browser.new_page(viewport=size, color_scheme=scheme)
        pages.append(page)
        shown = Shown(page)
        page.on("console", lambda message: shown.told.append(message.text))
        page.on("pageerror", lambda error: shown.told.append(str(error)))
        page.on("dialog", lambda dialog: (shown.told.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: shown.asked.append(request.url))
        page.goto(file.as_uri())
        return shown

    yield opened
    for page in pages:
        page.close()


def fetched(shown: Shown) -> list[str]:
    return [url for url in shown.asked[1:] if not url.startswith("data:")]


@pytest.mark.parametrize("name", AWKWARD)
def test_nothing_is_fetched_or_complained_about_and_no_page_is_wider_than_a_phone(show, name):
    shown = show(name, size=PHONE)
    assert shown.told == []
    assert fetched(shown) == []
    assert shown.value("document.documentElement.scrollWidth") == PHONE["width"]
    hidden = """[...document.querySelectorAll('main *')].filter(e => {
        const box = e.getBoundingClientRect();
        return box.width && (box.right > innerWidth + 1 || box.left < -1) && !e.closest('.scroll');
    }).map(e => e.outerHTML.slice(0, 200))"""
    assert shown.value(hidden) == []


def test_a_map_of_a_sweep_is_as_wide_as_a_phone_and_deeper_where_it_is_lower(show):
    sweep = exchanges.moments_layer(Recipe(), "made")
    numbers = {point.name: float(place) for place, point in enumerate(sweep.points)}
    shown = show(
        "", size=PHONE, text=html.page([swept_document(swept(sweep, lambda point, seed: numbers[point.name]))])
    )
    assert shown.told == []
    assert shown.value("document.documentElement.scrollWidth") == PHONE["width"]
    depths = "[...document.querySelectorAll('.heat .box')].map(e => +getComputedStyle(e).getPropertyValue('--depth'))"
    found = shown.value(depths)
    assert len(found) == 12
    assert found == sorted(found, reverse=True)
    colours = "new Set([...document.querySelectorAll('.heat .box')].map(e => getComputedStyle(e).backgroundColor)).size"
    assert shown.value(colours) == 12


def test_the_listeners_hear_a_page_that_misbehaves(show):
    bad = (
        "<!doctype html><body><div style='width:900px'>x</div><script>console.error('heard')</script>"
        "<img src='http://127.0.0.1:9/x.png'></body>"
    )
    shown = show("", size=PHONE, text=bad)
    assert "heard" in shown.told
    assert fetched(shown) == ["http://127.0.0.1:9/x.png"]
    assert shown.value("document.documentElement.scrollWidth") > PHONE["width"]


def test_the_policy_of_the_page_stops_what_should_not_be_there(show):
    page = html.page([document(AWKWARD["one seed"], analyse(AWKWARD["one seed"]))])
    bad = page.replace("</main>", "<script>window.ran = 1</script><img src='http://127.0.0.1:9/x.png'/></main>")
    shown = show("", text=bad)
    assert shown.value("window.ran === undefined")
    assert any("Content Security Policy" in told for told in shown.told)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_both_themes_are_shown_by_the_readers_choice(show, scheme, dark):
    shown = show("twenty seeds", scheme=scheme)
    style = "getComputedStyle(document.querySelector({!r})).{}"
    ground, ink = (
        sum(map(float, str(shown.value(style.format("body", name)))[4:-1].split(","))) / 3
        for name in ("backgroundColor", "color")
    )
    assert (ground < 64 < 192 < ink) if dark else (ink < 64 < 192 < ground)
    curves = shown.value("[...document.querySelectorAll('path.curve')].map(e => getComputedStyle(e).stroke)")
    assert len(set(curves)) == 4
    assert shown.told == []


def test_letters_in_drawings_are_as_large_on_a_phone_as_on_a_desk(show):
    size = "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
    sizes = [set(map(round, show("twenty seeds", size=screen).value(size))) for screen in (DESK, PHONE)]
    assert sizes[0] == sizes[1]
    assert min(sizes[0]) >= 12


def test_on_a_phone_every_number_stands_beside_its_heading(show):
    shown = show("twenty seeds", size=PHONE)
    labels = "[...document.querySelectorAll('table td')].map(e => getComputedStyle(e, '::before').content)"
    assert '"error (%)"' in shown.value(labels)
    assert show("twenty seeds").value(labels)[0] == "none"


def test_it_prints_dark_on_light_with_everything_that_was_folded(show):
    shown = show("twenty seeds", scheme="dark")
    shown.page.emulate_media(media="print", color_scheme="dark")
    assert shown.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(shown.page.pdf()) > 10_000
    assert shown.value("document.querySelector('details table').getBoundingClientRect().height") > 50
    shown.page.set_viewport_size({"width": 718, "height": 1000})  # A4 between its margins
    assert shown.value("document.documentElement.scrollWidth") == 718


def test_an_arm_that_is_named_like_a_script_is_shown_by_that_name(show):
    shown = show("hostile")
    assert shown.told == []
    assert "</style><script>alert(1)</script>&amp;" in shown.value("document.querySelector('h1').innerText")
