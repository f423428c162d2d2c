"""The report as a page: whole, without network, without anything in it that a name could run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentex.comparison.analysis import analyse
from momentex.comparison.result import Arm, Comparison
from momentex.report import html
from momentex.report.compared import document
from momentex.report.markup import Markup, escaped, tag
from tests.reports import AWKWARD, HOSTILE, runs, trained

awkward = pytest.mark.parametrize("found", AWKWARD.values(), ids=AWKWARD)


def page(found: Comparison) -> str:
    return html.render(found, analyse(found))


def tree(text: str) -> ElementTree.Element:
    """As XML, which forgives nothing."""
    assert text.startswith("<!doctype html>\n")
    return ElementTree.fromstring(text.partition("\n")[2])


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


@awkward
def test_the_page_is_well_formed_and_small_and_fetches_nothing(found):
    text = page(found)
    assert len(text.encode()) < 1_000_000
    root = tree(text)
    assert {element.tag for element in root.iter()} & {"script", "img", "iframe", "object", "base", "form"} == set()
    for element in root.iter():
        assert not any(name.startswith("on") for name in element.attrib)
        for name in ("href", "src", "action", "data"):
            assert element.get(name, "#").startswith(("#", "data:"))
    assert "url(" not in text
    assert "@import" not in text


@awkward
def test_everything_that_the_analysis_says_is_on_the_page(found):
    analysis = analyse(found)
    root = tree(page(found))
    said = words(root)
    for text in (*(c.sentence for c in analysis.contrasts), *analysis.notes):
        assert " ".join(text.replace("\x00", "\ufffd").split()) in said
    assert [words(h) for h in root.iter("tbody") if h is not None]
    assert len(next(root.iter("tbody"))) == len(found.arms)


def test_the_verdict_comes_before_the_table_and_the_table_before_the_figures():
    text = page(AWKWARD["twenty seeds"])
    places = [text.index(mark) for mark in ('class="lead"', "<table", "<figure", "What was run")]
    assert places == sorted(places)


def test_the_first_verdict_is_of_the_primary_contrast_and_says_so():
    cards = [
        card
        for card in tree(page(AWKWARD["twenty seeds"])).iter("div")
        if (card.get("class") or "").startswith("claim ")
    ]
    ranks = [words(rank) for card in cards for rank in card.iter("span") if rank.get("class") == "rank"]
    assert ranks == ["primary contrast", "named beforehand"]
    assert "moex against labels only" in words(cards[0])


def test_what_a_user_wrote_is_text_wherever_it_stands():
    text = page(AWKWARD["hostile"])
    assert "<script" not in text
    assert "alert(1)" in text  # it is there, as text
    shown = words(tree(text))
    assert shown.count("</style><script>alert(1)</script>&amp;") >= 8
    assert HOSTILE.partition("\x00")[0] in words(next(tree(text).iter("title")))


@given(st.text(max_size=60))
def test_any_text_survives_as_it_is_but_for_what_xml_has_no_letters_for(given):
    back = ElementTree.fromstring(tag("p", given, title=given))
    wanted = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", given)
    assert (back.text or "") == wanted.replace("\r\n", "\n").replace("\r", "\n")
    assert escaped(escaped(given)) == escaped(given)


def test_markup_is_not_escaped_again():
    assert tag("p", Markup("<b>x</b>"), "<") == "<p><b>x</b>&lt;</p>"


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_number_of_the_table_is_one_of_the_analysis():
    found = AWKWARD["failures"]
    analysis = analyse(found)
    table = document(found, analysis).sections[0].parts[0]
    headings = [column.heading for column in table.columns]
    assert headings == ["arm", "error", "error, best epoch", "NLL", "calibration error", "run time", "cost", "seeds"]
    for row, cells in zip(analysis.rows, table.rows, strict=True):
        wanted = [
            row.last.get("error"),
            row.best.get("error"),
            row.last.get("nll"),
            row.last.get("calibration"),
        ]
        for estimate, cell in zip(wanted, cells[1:], strict=False):
            if estimate is None:
                assert cell.text == "—"
                continue
            mean, sem = map(float, cell.text.split(" ± "))
            places = len(cell.text.rpartition(".")[2])
            assert (mean, sem) == (round(estimate.mean, places), round(estimate.sem, places))
        assert cells[-1].text == f"{4 - len(row.failures)} of 4"


def test_the_standard_error_is_the_one_that_is_named():
    found = runs(3)
    for sem, words_ in (("plain", "plain, s / √n"), ("corrected", "small-sample correction")):
        asked = runs(3, sem=sem)
        table = document(asked, analyse(asked)).sections[0].parts[0]
        (row, *_) = analyse(found).rows
        value = row.last["error"].sem if sem == "plain" else row.last["error"].sem_corrected
        assert table.rows[0][1].text.endswith(f"± {value:.2f}")
        assert words_ in table.caption


def test_the_papers_number_stands_beside_ours():
    table = document(AWKWARD["paper"], analyse(AWKWARD["paper"])).sections[0].parts[0]
    assert [row[-1].text for row in table.rows] == ["6.82 ± 0.23", "—", "—", "—"]
    assert table.columns[-1].heading == "paper"


# --- figures ---------------------------------------------------------------------------------------------------------


def figures(found: Comparison) -> dict[str, ElementTree.Element]:
    return {words(figure.find("figcaption/b")): figure for figure in tree(page(found)).iter("figure")}


def test_there_is_a_dot_for_every_pair_and_each_says_its_seed_and_its_number():
    found = AWKWARD["failures"]
    drawn = figures(found)["Differences in error (points), seed by seed"]
    strips = drawn.findall(".//div[@class='strip']")
    contrasts = [c for c in analyse(found).contrasts if c.differences]
    assert len(strips) == len(contrasts) == 3
    for strip, contrast in zip(strips, contrasts, strict=True):
        told = {title.text for title in strip.iter("title")}
        assert told == {f"seed {s}: {'+' if d > 0 else '−'}{abs(d):.2f}" for s, d in contrast.differences.items()}


def test_dots_and_intervals_lie_where_their_numbers_are():
    found = AWKWARD["twenty seeds"]
    drawn = figures(found)["Differences in error (points), seed by seed"]
    for strip, contrast in zip(drawn.findall(".//div[@class='strip']"), analyse(found).contrasts, strict=True):
        (zero,) = [float(x.get("x1").rstrip("%")) for x in strip.iter("line") if x.get("class") == "zero"]
        (bar,) = [x for x in strip.iter("line") if (x.get("class") or "").startswith("interval")]
        low, high = float(bar.get("x1").rstrip("%")), float(bar.get("x2").rstrip("%"))
        unit = (high - low) / (contrast.high - contrast.low)
        assert zero + unit * contrast.low == pytest.approx(low, abs=0.05)
        for dot in strip.iter("circle"):
            seed = int(re.match(r"seed (\d+):", dot.find("title").text).group(1))
            assert zero + unit * contrast.differences[seed] == pytest.approx(float(dot.get("cx").rstrip("%")), abs=0.05)


def test_an_arm_has_a_curve_if_it_has_numbers():
    drawn = figures(AWKWARD["failures"])["Error (%) by epoch"]
    curves = [path.find("title").text for path in drawn.iter("path") if path.get("class").startswith("curve")]
    assert curves == ["baseline", "moex", "labels only"]
    assert [words(item) for item in drawn.iter("li")] == curves


def test_the_curves_of_very_long_runs_are_drawn_with_fewer_points_the_last_among_them():
    found = runs(2, ["baseline", "moex"], outcomes=trained(2, ["baseline", "moex"], epochs=900))
    drawn = figures(found)["Error (%) by epoch"]
    paths = [path.get("d").split(" L") for path in drawn.iter("path") if path.get("class").startswith("curve")]
    assert [len(path) for path in paths] == [180, 180]
    assert all(path[-1].startswith("1000.0 ") for path in paths)


def test_without_epochs_in_between_there_are_no_curves_and_without_an_interval_no_bar():
    assert not any("by epoch" in name for name in figures(AWKWARD["one epoch"]))
    one = figures(AWKWARD["one seed"])["Differences in error (points), seed by seed"]
    assert not [line for line in one.iter("line") if "interval" in (line.get("class") or "")]
    assert "no interval" in words(one)


@awkward
def test_every_drawing_says_in_words_what_it_shows(found):
    for svg in tree(page(found)).iter("svg"):
        if svg.get("role") == "img":
            assert svg.get("aria-label")


# --- colours ---------------------------------------------------------------------------------------------------------


def themes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", html.STYLE.read_text(), flags=re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block)) for block in blocks]
    return dict(zip(("light", "dark", "print"), found, strict=True))


def linear(colour: str) -> list[float]:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""
    lights = sorted(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


# Machado, Oliveira and Fernandes (2009), for linear light.
EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(colour: str, eyes: str) -> list[float]:
    """In OKLab, in which distances are about as large as they look."""
    light = linear(colour)
    r, g, b = (max(0.0, sum(w * c for w, c in zip(row, light, strict=True))) for row in EYES[eyes])
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return [
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    ]


def apart(one: str, other: str, eyes: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(seen(one, eyes), seen(other, eyes), strict=True)) ** 0.5


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_letters_and_lines_stand_out_from_what_is_behind_them(theme):
    colours = themes()[theme]
    for ground in ("page", "card"):
        for ink in ("ink", "soft"):
            assert contrast(colours[ink], colours[ground]) >= 4.5
    for tone in ("good", "bad", "open"):
        assert contrast(colours[tone], colours[f"{tone}-wash"]) >= 4.5
    for i in range(8):
        assert contrast(colours[f"s{i}"], colours["card"]) >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_the_first_four_arms_are_told_apart_by_all_eyes(theme, eyes):
    colours = themes()[theme]
    for i in range(4):
        for j in range(i):
            assert apart(colours[f"s{i}"], colours[f"s{j}"], eyes) > 0.1


def test_the_measure_sees_a_red_and_a_green_that_some_eyes_do_not_tell_apart():
    assert apart("#b05a3c", "#7a7a30", "all cones") > 0.1 > apart("#b05a3c", "#7a7a30", "no red")


def test_more_arms_than_colours_are_drawn_otherwise():
    found = runs(2, [f"arm{i}" for i in range(10)], arms=tuple(Arm(name=f"arm{i}") for i in range(10)))
    keys = [svg.get("class") for svg in next(tree(page(found)).iter("table")).iter("svg")]
    assert len(set(keys)) == 10
