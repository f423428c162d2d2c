"""A comparison in markdown: what the analysis says, and nothing that a text could do to the form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentex.comparison.analysis import analyse
from momentex.comparison.result import Arm
from momentex.report import markdown
from tests.comparisons import comparison

NUMBERS = {
    "baseline": [{"error": e, "nll": e / 20} for e in (10.0, 11.0, 12.0)],
    "moex": [{"error": e, "nll": e / 20} for e in (8.1, 9.0, 10.2)],
    "labels_only": [{"error": e, "nll": e / 20} for e in (9.8, 11.1, 11.9)],
}


def rows(text: str) -> list[list[str]]:
    """Of the first table."""
    lines = text[text.index("\n| ") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_verdict_is_said_first_and_every_arm_has_a_row():
    found = comparison(NUMBERS)
    text = markdown.render(found, analyse(found))
    assert text.index(analyse(found).contrasts[0].sentence) < text.index("| arm")
    head, _, *body = rows(text)
    assert head[:3] == ["arm", "error (%)", "NLL"]
    assert [row[0] for row in body] == ["baseline", "moex", "labels_only"]
    assert body[0][1] == "11.00 ± 0.58"


@pytest.mark.parametrize("whole", [False, True])
def test_notes_are_in_every_length(whole):
    found = comparison({"baseline": [10.0, "out of memory"], "moex": [9.0, 8.0]})
    text = markdown.render(found, analyse(found), whole=whole)
    for note in analyse(found).notes:
        assert markdown.text(note) in text


@given(st.text(min_size=1, max_size=40))
def test_no_name_of_an_arm_makes_another_table(name):
    found = comparison(NUMBERS, arms=tuple(Arm(name=arm, title=name) for arm in NUMBERS))
    assert {len(row) for row in rows(markdown.render(found, analyse(found)))} == {3}
