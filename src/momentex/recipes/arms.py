"""The arms of a comparison, as functions over recipes: with Moment Exchange, and its two controls.

    plain         no exchange
    moex          the method: features and labels
    labels_only   the labels are mixed with the same pairs, coins and λ, and the features are not
    lam1          the features are exchanged with the same pairs and coins, and the labels are not mixed

`named` gives every arm of a recipe its name: `resnet110`, `resnet110_moex`, `resnet110_labels_only`, `resnet110_lam1`.
`ARMS` has those that a comparison can be asked for, and `of` makes their recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from momentex.augment.values import CutMix, Cutout, Mixup
from momentex.errors import RecipeError, did_you_mean
from momentex.train.recipe import Exchange, Recipe, Reported
from momentex.train.regularizers import DropBlock, ManifoldMixup, ShakeDrop, StochasticDepth
from momentex.train.resolved import identity

DEFAULT = ("baseline", "moex", "labels_only", "lam1")


@dataclass(frozen=True)
class Usual:
    """What a comparison of a recipe has, unless others are asked for. `exchange` is that of its arm moex; None: the one
    that the paper advises.
    """

    arms: tuple[str, ...] = DEFAULT
    seeds: int = 5
    exchange: Exchange | None = None


@dataclass(frozen=True)
class Named:
    """A recipe that has a name; `note` is its lab note, and the first line of that its summary."""

    name: str
    make: Callable[[], Recipe]
    note: str
    usual: Usual = Usual()


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


def plain(name: str, make: Callable[[], Recipe], about: str, usual: Usual = Usual()) -> Named:
    """A recipe without exchange. `about` is its title, an empty line, and where its values come from."""
    title, _, body = about.partition("\n")
    return Named(name, make, note(name, title, make().paper, body), usual)


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
    if paper is not None and paper.top5 is not None:
        number = number.replace(" % error", f" % error, top-5 {paper.top5:.2f} %", 1)
    parts = [first, number, *(paragraph.strip() for paragraph in paragraphs), f"    momentex train {name}"]
    return "\n\n".join(filter(None, parts))


def spoken(paper: Reported) -> str:
    """`6.82 ± 0.23`."""
    return f"{paper.error:.2f}" if paper.sem is None else f"{paper.error:.2f} ± {paper.sem:.2f}"


def setting(exchange: Exchange) -> str:
    """How an exchange is set.

    >>> from momentex.over import GN
    >>> setting(Exchange(over=GN(4), layer="layer2", lam=0.7))
    'λ = 0.7, p = 0.5, GN(4) at the input of layer2'
    >>> setting(Exchange()), setting(Exchange(features=False))
    ('λ = 0.9, p = 0.5, PONO at the input of the first stage', 'λ = 0.9, p = 0.5')
    """
    numbers = f"λ = {exchange.lam:g}, p = {exchange.p:g}"
    if not exchange.features:
        return numbers
    over, groups = exchange.over, getattr(exchange.over, "groups", 1)
    words = [
        f"{type(over).__name__}{f'({groups})' if groups > 1 else ''}",
        *([f"({over.only} alone)"] if over.only else []),
    ]
    return f"{numbers}, {' '.join(words)} at the {exchange.where} of {exchange.layer or 'the first stage'}"


# --- the arms of a comparison ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Method:
    """What an arm does to a recipe: it sets one field, which the arms without it have as in `Recipe()`.

    title   as in tables
    what    what it does, in a sentence
    field   of the recipe; None for the baseline, which sets nothing
    value   of that field, given what the recipe that is compared has there: its flags apply to every arm that uses them
    """

    title: str
    what: str
    field: str | None = None
    value: Callable[[Any], Any] = lambda asked: asked


def _whole(asked: Exchange | None) -> Exchange:
    """The exchange of the recipe, of which there are controls."""
    exchange = asked or Exchange()
    if not exchange.features or exchange.lam == 1 or exchange.labels == "others":
        said = "exchange.lam is 1" if exchange.lam == 1 else "exchange.labels is 'others'"
        said = said if exchange.features else "exchange.features is False"
        raise RecipeError(
            f"{said} in the recipe that is to be compared: that is a control already. Give the recipe with the whole "
            "exchange; its controls are the arms labels_only and lam1."
        )
    return exchange


ARMS: dict[str, Method] = {
    "baseline": Method(title="baseline", what="The recipe without what the other arms add."),
    "moex": Method(
        title="MoEx",
        what="Features are exchanged and labels mixed: the method.",
        field="exchange",
        value=_whole,
    ),
    "labels_only": Method(
        title="label interpolation only",
        what="Labels are mixed with the same pairs, coins and λ, and features are not exchanged.",
        field="exchange",
        value=lambda asked: replace(_whole(asked), features=False),
    ),
    "lam1": Method(
        title="exchange without labels (λ = 1)",
        what="Features are exchanged with the same pairs and coins, and labels are not mixed.",
        field="exchange",
        value=lambda asked: replace(_whole(asked), lam=1.0),
    ),
    "moex_label_smoothing": Method(
        title="MoEx with label smoothing",
        what="Features are exchanged, and labels smoothed over the other classes in place of being mixed.",
        field="exchange",
        value=lambda asked: replace(_whole(asked), labels="others"),
    ),
    "mixup": Method(
        title="mixup",
        what="Images and labels are averaged with those of a partner.",
        field="mixup",
        value=lambda asked: asked or Mixup(),
    ),
    "cutmix": Method(
        title="CutMix",
        what="A box of a partner is pasted into every other batch, and labels are mixed by its area.",
        field="cutmix",
        value=lambda asked: asked or CutMix(p=0.5),
    ),
    "cutout": Method(
        title="Cutout",
        what="A square of half the image's side is set to zero.",
        field="cutout",
        value=lambda asked: asked or Cutout(),
    ),
    "label_smoothing": Method(
        title="label smoothing",
        what="A tenth of each label is spread over all classes.",
        field="label_smoothing",
        value=lambda asked: asked or 0.1,
    ),
    "label_smoothing_others": Method(
        title="label smoothing over the others",
        what="A tenth of each label is spread over the other classes, as in the paper's ablation.",
        field="label_smoothing_others",
        value=lambda asked: asked or 0.1,
    ),
    "moex_paper": Method(
        title="MoEx as the paper advises",
        what="Features are exchanged and labels mixed, set as the paper advises.",
        field="exchange",
        value=lambda asked: Exchange(),
    ),
    "manifold_mixup": Method(
        title="manifold mixup",
        what="Features of a layer drawn for each step, the input among them, are averaged with those of a partner.",
        field="manifold_mixup",
        value=lambda asked: asked or ManifoldMixup(),
    ),
    "dropblock": Method(
        title="DropBlock",
        what="Squares of features are dropped at the output of the last stages, more of them as training goes on.",
        field="dropblock",
        value=lambda asked: asked or DropBlock(),
    ),
    "shakedrop": Method(
        title="ShakeDrop",
        what="Residual branches are multiplied by noise, and their gradients by another one.",
        field="shakedrop",
        value=lambda asked: asked or ShakeDrop(),
    ),
    "stochastic_depth": Method(
        title="stochastic depth",
        what="Residual branches are left out by a coin.",
        field="stochastic_depth",
        value=lambda asked: asked or StochasticDepth(),
    ),
}


def methods(arm: str) -> list[Method]:
    """What an arm is made of: `cutmix+moex` has both, which act in the order in which a batch meets them.

    >>> [method.title for method in methods("moex")]
    ['MoEx']
    """
    parts = arm.split("+")
    for part in parts:
        if part not in ARMS:
            of = f" (of {arm!r})" if len(parts) > 1 else ""
            near = did_you_mean(part, ARMS)
            raise RecipeError(
                f"there is no arm {part!r}{of}. {near} There are {', '.join(ARMS)}; a + b is written a+b.".replace(
                    "  ", " "
                )
            )
    found = [ARMS[part] for part in parts]
    if len(parts) > 1 and any(method.field is None for method in found):
        raise RecipeError(f"the arm {arm!r} adds to baseline, which is what every arm adds to: leave it out.")
    for (one, a), (other, b) in combinations(zip(parts, found, strict=True), 2):
        if a.field == b.field:
            raise RecipeError(f"the arm {arm!r} has {one} and {other}, which both set {a.field}: it can have one.")
    return found


def title(arm: str) -> str:
    """What a table calls an arm.

    >>> title("labels_only")
    'label interpolation only'
    """
    return " + ".join(method.title for method in methods(arm))


def of(recipe: Recipe, arms: Sequence[str] = DEFAULT) -> dict[str, Recipe]:
    """The recipe of every arm. What no arm sets is as `recipe` has it, and what one sets, others do not have.

    >>> made = of(Recipe(exchange=Exchange(lam=0.7)), ["baseline", "moex", "lam1"])
    >>> [recipe.exchange and recipe.exchange.lam for recipe in made.values()]
    [None, 0.7, 1.0]
    """
    if len(set(arms)) < len(arms):
        twice = next(arm for arm in arms if list(arms).count(arm) > 1)
        raise RecipeError(f"the arm {twice} is there twice: name each once.")
    made_of = {arm: methods(arm) for arm in arms}
    plain = without(recipe, arms)
    made = {}
    for arm, found in made_of.items():
        changes = {m.field: m.value(getattr(recipe, m.field)) for m in found if m.field is not None}
        made[arm] = replace(plain, **changes)
    for one, other in combinations(made, 2):
        if identity(made[one]) == identity(made[other]):
            raise RecipeError(
                f"the arms {one} and {other} do not differ: with this recipe, both are trained in the same way. Leave "
                "one of them out, or change the recipe."
            )
    return made


def without(recipe: Recipe, arms: Sequence[str]) -> Recipe:
    """The recipe without an exchange, and without what these arms add."""
    fields = {"exchange"} | {method.field for arm in arms for method in methods(arm) if method.field is not None}
    return replace(recipe, paper=None, **{field: getattr(Recipe(), field) for field in fields})
