"""The paper's ablation of design choices (Table 7): what of Moment Exchange is needed, and twins of its rows for a CPU.

The paper trains ResNet-110 on CIFAR-100, three runs a row. It gives λ = 0.9 for the last row, and calls the confidence
of label smoothing λ too; p and the layer are not given, and are those of its general advice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

from momentex.recipes import cifar, small
from momentex.recipes.arms import Named, labels_only, lam1, moex, note
from momentex.train.recipe import Exchange, Recipe, Reported

TABLE = "Table 7, three runs"
SMOOTHING = 0.1  # 1 less the paper's confidence of 0.9
ADVICE = "Exchange: λ = 0.9, p = 0.5, PONO, before the first stage: the paper's general advice (Sec. 3)."


def baseline(base: Recipe) -> Recipe:
    """Baseline."""
    return base


def label_smoothing(base: Recipe) -> Recipe:
    """Label smoothing.

    A tenth of each label is spread over the other classes, as the paper writes it: a confidence of 0.9. Libraries
    spread over all classes, the own one among them; that is the field label_smoothing.
    """
    return replace(base, label_smoothing_others=SMOOTHING)


def interpolation(base: Recipe) -> Recipe:
    """Label interpolation only.

    The labels are mixed with the same pairs, coins and λ as in Moment Exchange, and the features are as they are.
    """
    return labels_only(moex(base))


def lam_1(base: Recipe) -> Recipe:
    """MoEx with λ = 1, not interpolating the labels.

    The features are exchanged with the same pairs and coins. The paper finds no effect at all: 26.3 ± 0.02.
    """
    return lam1(moex(base))


def moex_smoothing(base: Recipe) -> Recipe:
    """MoEx with label smoothing.

    The features are exchanged, and where they are, the label is smoothed over all other classes in place of being mixed
    with the partner's. Where the coin says no, the label is as it is: the text does not say, and this is MoEx with
    nothing changed but what a label is mixed with.
    """
    return replace(base, exchange=Exchange(labels="others"))


def proposed(base: Recipe) -> Recipe:
    """MoEx, λ = 0.9, label interpolation: the method."""
    return moex(base)


# Name, recipe, error in % and its standard error.
ROWS: tuple[tuple[str, Callable[[Recipe], Recipe], float, float], ...] = (
    ("baseline", baseline, 26.3, 0.10),
    ("label_smoothing", label_smoothing, 26.0, 0.06),
    ("labels_only", interpolation, 26.0, 0.12),
    ("lam1", lam_1, 26.3, 0.02),
    ("moex_label_smoothing", moex_smoothing, 25.8, 0.09),
    ("moex", proposed, 25.5, 0.09),
)


def resnet110() -> Recipe:
    """ResNet-110 on CIFAR-100."""
    return replace(cifar.resnet110("cifar100"), paper=None)


def digits() -> Recipe:
    """ResNet-8 on 50 handwritten digits."""
    return small.digits()


def resnet20_5k() -> Recipe:
    """ResNet-20 on 5,000 images of CIFAR-10."""
    return small.cifar10_resnet20_5k()


# Before the name of the row; the first is the paper's, the others are twins of it.
OF: tuple[tuple[str, Callable[[], Recipe]], ...] = (
    ("ablation.design", resnet110),
    ("digits.design", digits),
    ("cifar10.resnet20_5k.design", resnet20_5k),
)


def row(name: str, base: Callable[[], Recipe]) -> Recipe:
    """A row of the table over another recipe; the number of the paper is that of its own.

    >>> row("label_smoothing", resnet110).paper.error, row("label_smoothing", digits).paper
    (26.0, None)
    """
    make, error, sem = next((make, error, sem) for known, make, error, sem in ROWS if known == name)
    reported = Reported(error=error, sem=sem, where=TABLE) if base is resnet110 else None
    return replace(make(base()), paper=reported)


def table() -> Iterator[Named]:
    """Every recipe of this module."""
    for stem, base in OF:
        for name, make, _, _ in ROWS:
            title, _, body = (inspect.getdoc(make) or "").partition("\n")
            first = f"{title.rstrip('.')}: {(inspect.getdoc(base) or '').rstrip('.')}."
            made = row(name, base)
            advice = "" if made.exchange is None else ADVICE
            full = f"{stem}.{name}"
            yield Named(full, _maker(name, base), note(full, first, made.paper, body, advice))


def _maker(name: str, base: Callable[[], Recipe]) -> Callable[[], Recipe]:
    return lambda: row(name, base)
