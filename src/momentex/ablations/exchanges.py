"""The paper's ablations of the exchange itself (Sec. 5), and its searches, as functions of the recipe that is varied.

What a row does not say is λ = 0.9 and p = 0.5, the paper's general advice (Sec. 3): of its CIFAR rows it reports
neither, but only among which values it chose. Those of ImageNet it does report.

The paper's sites are read as follows. "The first layer (right before the first stage)" is the input of stage 1; the
1st, 2nd and 3rd stage of its footnote stand for their outputs, so that the "1st stage" of that is the "before stage 2"
of its table:

    footnote    1st layer        1st stage        2nd stage        3rd stage
    table       before stage 1   before stage 2   before stage 3   -
    here        layer1, input    layer2, input    layer3, input    layer3, output

The paper chose among settings by the error on the test images. Here a search is on images that are held out of the
training set (`data.validation`), and a table of settings is a table, not a choice.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

from momentex.over import GN, IN, LN, LRN, PONO, Over
from momentex.recipes import ablation
from momentex.sweep.grid import Axis, Point, Sweep, axis, grid
from momentex.train.recipe import Exchange, Recipe, Reported

MOMENTS: dict[str, Over] = {"LN": LN(), "IN": IN(), "GN": GN(4), "PONO": PONO()}
SITES = {
    "before stage 1": {"exchange.layer": "layer1"},
    "before stage 2": {"exchange.layer": "layer2"},
    "before stage 3": {"exchange.layer": "layer3"},
}
AFTER = {"after stage 3": {"exchange.layer": "layer3", "exchange.where": "output"}}
LAMBDAS, PS = (0.6, 0.7, 0.8, 0.9), (0.25, 0.5, 0.75, 1.0)


def lam(*values: float) -> Axis:
    """The axis of λ."""
    return axis("exchange.lam", *values, title="λ")


def p(*values: float) -> Axis:
    """The axis of p."""
    return axis("exchange.p", *values)


# --- moments to exchange ---------------------------------------------------------------------------------------------

# Title in the paper's table, name, where it was best for the paper (of the last three that is not said), what is
# exchanged, what it reports.
ROWS: tuple[tuple[str, str, str, Over, float, float], ...] = (
    ("All features in a layer, i.e. LN", "ln", "layer3", LN(), 25.6, 0.02),
    ("Feature in each channel, i.e. IN", "in", "layer2", IN(), 25.7, 0.13),
    ("Features in group of channels, i.e. GN (g=4)", "gn", "layer1", GN(4), 25.7, 0.09),
    ("Features at each position, i.e. PONO", "pono", "layer1", PONO(), 25.5, 0.09),
    ("1st moment at each position", "first", "layer1", PONO(only="mean"), 25.9, 0.06),
    ("2nd moment at each position", "second", "layer1", PONO(only="std"), 26.0, 0.13),
    ("Unnormalized 2nd moment at each position, i.e. LRN", "lrn", "layer1", LRN(), 26.3, 0.05),
)


def moments(base: Recipe, title: str, reported: bool = False) -> Sweep:
    """The eight rows of the paper's table of moments, over a recipe without an exchange."""
    where = "Table 8, three runs"
    points = [Point(name="none", title="No MoEx", recipe=_reporting(base, (26.3, 0.10) if reported else None, where))]
    for row, name, layer, over, error, sem in ROWS:
        recipe = replace(base, exchange=Exchange(layer=layer, over=over))
        points.append(Point(name=name, title=row, recipe=_reporting(recipe, (error, sem) if reported else None, where)))
    about = (
        "Every kind of moments at the layer at which the paper found it best; for the last three it does not say "
        "where, and they are exchanged before stage 1."
    )
    return Sweep(title=title, points=tuple(points), about=about)


# --- design choices --------------------------------------------------------------------------------------------------


def design(base: Recipe, title: str, reported: bool = False) -> Sweep:
    """The six rows of the paper's ablation of design choices, over a recipe without an exchange."""
    points = []
    for name, row, error, sem in ablation.ROWS:
        title_of_row = (inspect.getdoc(row) or "").partition("\n")[0].rstrip(".")
        recipe = _reporting(row(base), (error, sem) if reported else None, ablation.TABLE)
        points.append(Point(name=name, title=title_of_row, recipe=recipe))
    about = "What Moment Exchange is without the exchange, without the labels, and with labels that know no partner."
    return Sweep(title=title, points=tuple(points), about=about)


# --- moments × layer -------------------------------------------------------------------------------------------------

REPORTED_LAYERS: dict[str, tuple[tuple[float, float], ...]] = {  # before stage 1, 2, 3
    "LN": ((25.9, 0.08), (25.9, 0.07), (25.6, 0.02)),
    "IN": ((26.0, 0.13), (25.7, 0.13), (26.2, 0.13)),
    "GN": ((25.7, 0.09), (26.1, 0.09), (25.8, 0.13)),
    "PONO": ((25.5, 0.09), (26.1, 0.03), (26.0, 0.09)),
}


def moments_layer(base: Recipe, title: str, reported: bool = False) -> Sweep:
    """The paper's table of moments by layers."""
    about = "The best layer of each kind of moments is marked, as in the paper."
    made = grid(title, _exchanging(base), [_of_moments(), _of_sites(SITES)], best="row", about=about)
    return _with_paper(made, "Table 9") if reported else made


def moments_layer_search(base: Recipe, title: str, reported: bool = False) -> Sweep:
    """Moments by the four sites of the paper's footnote, each with every λ and p that it tried."""
    sites = _of_sites({**SITES, **AFTER})
    axes = [_of_moments(), sites, lam(*LAMBDAS), p(*PS)]
    about = (
        "Every place shows the best of its 16 settings of λ and p, as the paper's do; the paper chose on the test "
        "images."
    )
    made = grid(title, _exchanging(base), axes, best="row", about=about)
    made = replace(made, searched=("lam", "p"))
    return _with_paper(made, "Table 9, best of 16 settings of λ and p") if reported else made


def _of_moments() -> Axis:
    values = {name: {"exchange.over": over} for name, over in MOMENTS.items()}
    return Axis(name="over", title="moments", values=values)


def _of_sites(values: Mapping[str, Mapping[str, str]]) -> Axis:
    return Axis(name="layer", values=values)


def _with_paper(sweep: Sweep, where: str) -> Sweep:
    """With the number that the paper has at these moments and this layer."""
    points = []
    for point in sweep.points:
        row, layer = REPORTED_LAYERS[point.at["over"]], list(SITES)
        number = row[layer.index(point.at["layer"])] if point.at["layer"] in layer else None
        points.append(replace(point, recipe=_reporting(point.recipe, number, where)))
    return replace(sweep, points=tuple(points))


# --- λ × p -----------------------------------------------------------------------------------------------------------


def lambda_p(base: Recipe, title: str) -> Sweep:
    """λ by p, all values of the paper's footnote, with PONO before stage 1."""
    return grid(title, _exchanging(base), [lam(*LAMBDAS), p(*PS)])


IMAGENET = (  # λ, p, top-1 and top-5 error; the first row has no exchange
    (1.0, 0.0, 23.1, 6.6),
    (0.9, 0.25, 22.6, 6.6),
    (0.9, 0.5, 22.4, 6.4),
    (0.9, 0.75, 22.3, 6.3),
    (0.3, 1.0, 22.9, 6.9),
    (0.5, 1.0, 22.2, 6.4),
    (0.7, 1.0, 21.9, 6.2),
    (0.9, 1.0, 21.9, 6.1),
    (0.95, 1.0, 22.5, 6.3),
    (0.99, 1.0, 22.6, 6.5),
)


def lambda_p_rows(base: Recipe, title: str, reported: bool = False) -> Sweep:
    """The ten rows of the paper's table of λ and p on ImageNet, over a recipe without an exchange."""
    axes = lam(*sorted({row[0] for row in IMAGENET})), p(0.0, *PS)
    points = []
    for share, chance, top1, top5 in IMAGENET:
        exchange = Exchange(lam=share, p=chance) if chance else None
        paper = Reported(error=top1, top5=top5, where="Table 10, 300 epochs") if reported else None
        recipe = replace(base, exchange=exchange, paper=paper)
        at = {"lam": f"{share:g}", "p": f"{chance:g}"}
        name = f"lam={share:g},p={chance:g}"
        points.append(Point(name=name, title=f"λ = {share:g}, p = {chance:g}", recipe=recipe, at=at))
    about = "λ = 1 with p = 0 is training without an exchange."
    return Sweep(title=title, points=tuple(points), axes=axes, about=about)


# --- searches --------------------------------------------------------------------------------------------------------


def search_modelnet(base: Recipe, title: str) -> Sweep:
    """What the paper searched for ModelNet10, and used on ModelNet40: PONO or IN, p, λ."""
    over = axis("exchange.over", PONO(), IN(), title="moments")
    return grid(title, _exchanging(base), [over, p(0.5, 1.0), lam(0.5, 0.9)])


def search_speech(base: Recipe, title: str) -> Sweep:
    """What the paper searched for Speech Commands: p and λ."""
    return grid(title, _exchanging(base), [p(*PS), lam(0.5, 0.9)])


def search_iwslt(base: Recipe, title: str) -> Sweep:
    """What the paper searched for translation, German to English, and used for three other pairs: p and λ, with IN."""
    base = replace(base, exchange=replace(base.exchange or Exchange(), over=IN()))
    return grid(title, base, [p(*PS), lam(0.4, 0.5, 0.6, 0.7, 0.8, 0.9)])


def _exchanging(recipe: Recipe) -> Recipe:
    return recipe if recipe.exchange is not None else replace(recipe, exchange=Exchange(), paper=None)


def _reporting(recipe: Recipe, number: tuple[float, float] | None, where: str) -> Recipe:
    error = None if number is None else Reported(error=number[0], sem=number[1], where=where)
    return replace(recipe, paper=error)
