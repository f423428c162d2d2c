"""What the documents point at is there: files, anchors, tests by their names."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import methods
from docs import zoo

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf8")


def headings(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf8"), flags=re.M)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_within_the_repository_lead_somewhere(document):
    for link in LINK.findall(text_of(document)):
        if link.startswith(("http:", "https:")):
            continue
        file, _, anchor = link.partition("#")
        path = (ROOT / document).parent / file if file else ROOT / document
        assert path.exists(), link
        assert not anchor or anchor in headings(path), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document):
    for path in re.findall(r"`((?:tests|docs|examples|benchmarks)/[\w/.]+\.\w+)`", text_of(document)):
        assert (ROOT / path).exists(), path


def test_every_guarantee_names_a_test_that_its_file_has():
    table = text_of("README.md").split("<!-- guarantees -->")[1].split("<!-- /guarantees -->")[0]
    rows = table.strip().splitlines()[2:]
    assert rows
    for row in rows:
        named = re.findall(r"\[([\w ]+)\]\((tests/\w+\.py)\)", row)
        assert named, row
        for sentence, path in named:
            assert f"\ndef test_{sentence.replace(' ', '_')}(" in text_of(path), f"{path}: {sentence}"


def test_the_table_of_models_is_what_counting_gives():
    page = text_of("docs/models.md")
    assert zoo.filled(page) == page


# --- the cards of methods ---------------------------------------------------------------------------------------------

CARDS = sorted((ROOT / "docs/cards").glob("*.md"))
SECTIONS = [
    "In one sentence",
    "Picture",
    "Use it",
    "What it does to x and to targets",
    "Good values, and from which table",
    "Combines with",
    "Cost",
    "Departures from its paper",
    "Reference",
]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_a_card_has_its_sections_and_fits_a_screen_or_two(card):
    text = card.read_text(encoding="utf8")
    assert re.findall(r"^## (.+)$", text, flags=re.M) == SECTIONS
    assert len(text.splitlines()) <= 80
    assert f"cards/{card.name}" in text_of("mkdocs.yml")
    assert f"]({card.stem}.png)" in text


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_the_cost_on_a_card_is_what_was_measured(card):
    page = card.read_text(encoding="utf8")
    results = json.loads(methods.RESULTS.read_text(encoding="utf8"))
    assert methods.filled(page, card.stem, results) == page
    assert methods.START in page
