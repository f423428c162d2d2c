"""The report in LaTeX: what can be checked without LaTeX, which is that nothing is left open."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentex.comparison.analysis import analyse
from momentex.report import latex
from tests.reports import AWKWARD

awkward = pytest.mark.parametrize("found", AWKWARD.values(), ids=AWKWARD)


def assert_closed(text: str) -> None:
    """Braces, mathematics and environments end where they should; no letter is active that should not be."""
    plain = re.sub(r"\\[&%$#_{}\\]", "", "\n".join(x for x in text.splitlines() if not x.startswith("%")))
    depth = 0
    for letter in plain:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert plain.count("$") % 2 == 0
    assert not re.search("[#~]|[\x00-\x09\x0b-\x1f]", plain)
    assert not re.search("%", plain)
    assert not re.search(r"[\^_]", re.sub(r"\$\^2\$", "", plain))
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []


@awkward
def test_what_is_opened_is_closed(found):
    assert_closed(latex.render(found, analyse(found)))


@given(st.text())
def test_any_text_is_closed_in_itself(given):
    assert_closed(latex.text(given))
    assert "\n" not in latex.text(given)


@awkward
def test_rows_have_as_many_cells_as_there_are_columns(found):
    text = latex.render(found, analyse(found))
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL)
    assert tables
    for columns, body in tables:
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(columns)}


@awkward
def test_the_notes_and_the_sentences_are_there(found):
    analysis, text = analyse(found), latex.render(found, analyse(found))
    for said in (*(c.sentence for c in analysis.contrasts), *analysis.notes):
        assert latex.text(said) in text


def test_the_check_sees_what_is_open():
    for wrong in ("{", "}", "$", "a_b", "50 %", r"\begin{table}", "#"):
        with pytest.raises((AssertionError, IndexError)):
            assert_closed(wrong)
