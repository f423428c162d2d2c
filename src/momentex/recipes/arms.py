"""The arms of a comparison, as functions over recipes: with Moment Exchange, and its two controls.

    plain         no exchange
    moex          the method: features and labels
    labels_only   the labels are mixed with the same pairs, coins and λ, and the features are not
    lam1          the features are exchanged with the same pairs and coins, and the labels are not mixed

`named` gives every arm of a recipe its name: `resnet110`, `resnet110_moex`, `resnet110_labels_only`, `resnet110_lam1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from momentex.errors import RecipeError
from momentex.train.recipe import Exchange, Recipe, Reported


@dataclass(frozen=True)
class Named:
    """A recipe that has a name; `note` is its lab note, and the first line of that its summary."""

    name: str
    make: Callable[[], Recipe]
    note: str


def moex(recipe: Recipe, exchange: Exchange | None = None) -> Recipe:
    """The recipe with Moment Exchange; by default as the paper advises: PONO, λ = 0.9, p = 0.5, at the first stage.

    >>> moex(Recipe()).exchange.lam
    0.9
    """
    return replace(recipe, exchange=exchange or Exchange(), paper=None)


def labels_only(recipe: Recipe) -> Recipe:
    """The control that mixes the labels alone.

    >>> labels_only(moex(Recipe())).exchange.features
    False
    """
    return replace(recipe, exchange=replace(_exchange(recipe, "labels_only"), features=False), paper=None)


def lam1(recipe: Recipe) -> Recipe:
    """The control that exchanges the features alone: λ = 1.

    >>> lam1(moex(Recipe())).exchange.lam
    1.0
    """
    return replace(recipe, exchange=replace(_exchange(recipe, "lam1"), lam=1.0), paper=None)


def _exchange(recipe: Recipe, control: str) -> Exchange:
    if recipe.exchange is None:
        raise RecipeError(
            f"{control} is a control of an exchange, and this recipe has none: apply arms.moex to it first."
        )
    return recipe.exchange


def plain(name: str, make: Callable[[], Recipe], about: str) -> Named:
    """A recipe without exchange. `about` is its title, an empty line, and where its values come from."""
    title, _, body = about.partition("\n")
    return Named(name, make, note(name, title, make().paper, body))


def named(
    stem: str,
    variant: str,
    make: Callable[[], Recipe],
    about: str,
    *,
    exchange: Exchange | None = None,
    advice: str,
    paper: Reported | None = None,
) -> Iterator[Named]:
    """Moment Exchange in the recipe that `make` returns, and its controls: `STEM_ARM`, or `STEM_ARM_VARIANT`.

    `advice` says where the numbers of the exchange come from, and `paper` what is reported for it (for its controls,
    nothing is).
    """
    title, _, body = about.partition("\n")

    def with_moex() -> Recipe:
        return replace(moex(make(), exchange), paper=paper)

    for arm, recipe, what in (
        ("moex", with_moex, "with Moment Exchange"),
        ("labels_only", lambda: labels_only(with_moex()), "control: labels are mixed, features not exchanged"),
        ("lam1", lambda: lam1(with_moex()), "control: features are exchanged, labels not mixed"),
    ):
        name = "_".join(filter(None, [stem, arm, variant]))
        first = f"{title.rstrip('.')}, {what}."
        yield Named(name, recipe, note(name, first, recipe().paper, body, advice))


def note(name: str, first: str, paper: Reported | None, *paragraphs: str) -> str:
    """A lab note: what it is, what the paper reports, where the values come from, the command.

    >>> print(note("mine", "ResNet-110.", Reported(error=6.82, sem=0.23, where="Table 1"), "From there."))
    ResNet-110.
    <BLANKLINE>
    Paper: 6.82 ± 0.23 % error (Table 1).
    <BLANKLINE>
    From there.
    <BLANKLINE>
        momentex train mine
    """
    number = f"Paper: {spoken(paper)} % error{f' ({paper.where})' if paper.where else ''}." if paper else ""
    parts = [first, number, *(paragraph.strip() for paragraph in paragraphs), f"    momentex train {name}"]
    return "\n\n".join(filter(None, parts))


def spoken(paper: Reported) -> str:
    """`6.82 ± 0.23`."""
    return f"{paper.error:.2f}" if paper.sem is None else f"{paper.error:.2f} ± {paper.sem:.2f}"
