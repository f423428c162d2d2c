"""The cards of methods on features: their costs are what was measured, and their length is that of a card."""

import json
from pathlib import Path

import pytest

from benchmarks import features

CARDS = Path(__file__).parent.parent / "docs/cards"


@pytest.mark.parametrize("card", features.METHODS)
def test_the_cost_on_a_card_is_what_was_measured(card):
    page = (CARDS / f"{card}.md").read_text(encoding="utf8")
    assert features.filled(page, card, json.loads(features.RESULTS.read_text(encoding="utf8"))) == page
    assert len(page.splitlines()) <= 80
    assert (CARDS / f"{card}.png").exists()
