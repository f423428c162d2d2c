"""What came of a sweep: as JSON, as the paper's table, over each axis, as a document in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from momentex import ablations, cli
from momentex.ablations import exchanges
from momentex.errors import RunError
from momentex.report import html, latex, markdown
from momentex.report.heat import depth
from momentex.report.swept import document
from momentex.sweep.grid import Point, Sweep, axis, grid, listed
from momentex.swept import folder as store
from momentex.swept.result import Swept, from_json, to_json
from momentex.swept.table import Table, marginals, tabled
from momentex.train.recipe import Recipe
from tests.sweeps import swept


def layers(**changes: object) -> Swept:
    """Moments × layer with numbers of which PONO before stage 2 has the lowest, and one run that failed."""
    sweep = ablations.find("ablation.moments_layer")
    means = {point.name: 26.0 + 0.1 * i for i, point in enumerate(sweep.points)}
    means["over=PONO,layer=before-stage-2"] = 25.0

    def number(point: Point, seed: int) -> object:
        failed = point.name == "over=LN,layer=before-stage-3" and seed == 1
        return "RunError: no room" if failed else means[point.name] + 0.1 * seed

    return swept(sweep, number, **changes)


def best(table: Table, paper: bool = False) -> set[str]:
    return {c.point for row in table.rows for c in row.cells if (c.paper_best if paper else c.best)}


def test_a_sweep_goes_to_json_and_back() -> None:
    for found in (
        layers(facts={"command": "momentex sweep"}, notes=("a note",), sem="corrected"),
        swept(exchanges.lambda_p_rows(Recipe(), "mine", reported=True), lambda point, seed: 20.0 + seed),
    ):
        assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_what_is_no_sweep_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this is no sweep: KeyError"):
        from_json({"arms": []})
    document = to_json(layers())
    document["sweep"]["colour"] = "red"
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=r"sweep\.json cannot be read: this is no sweep: TypeError"):
        store.read(tmp_path)


# --- the table -------------------------------------------------------------------------------------------------------


def test_moments_by_layer_is_the_papers_matrix_with_the_best_of_each_row_marked() -> None:
    table = tabled(layers())
    assert table.corner == ("moments",)
    assert table.columns == ("before stage 1", "before stage 2", "before stage 3")
    assert [row.labels for row in table.rows] == [("LN",), ("IN",), ("GN",), ("PONO",)]
    assert best(table) == {
        *("over=LN,layer=before-stage-1", "over=IN,layer=before-stage-1", "over=GN,layer=before-stage-1"),
        "over=PONO,layer=before-stage-2",
    }
    assert best(table, paper=True) == {  # as the paper prints it
        *("over=LN,layer=before-stage-3", "over=IN,layer=before-stage-2", "over=GN,layer=before-stage-1"),
        "over=PONO,layer=before-stage-1",
    }


def test_a_mean_is_over_the_seeds_that_ended_and_says_how_many() -> None:
    cell = tabled(layers()).rows[0].cells[2]
    assert (cell.missing, cell.ours and cell.ours.n) == (1, 2)
    assert cell.ours is not None
    assert cell.ours.mean == pytest.approx(26.2 + 0.1)
    assert cell.sem == pytest.approx(0.1)  # of 26.2 and 26.4


def test_the_rows_of_imagenet_are_a_list_with_both_errors_and_ties_are_marked_alike() -> None:
    sweep = exchanges.lambda_p_rows(Recipe(), "mine", reported=True)
    table = tabled(swept(sweep, lambda point, seed: 20.0 + seed))
    assert table.corner == ("λ", "p")
    assert table.columns == ("error", "top-5 error")
    assert [row.labels for row in table.rows][:2] == [("1", "0"), ("0.9", "0.25")]
    marked = [[cell.paper_best for cell in row.cells] for row in table.rows]
    assert [i for i, (top1, _) in enumerate(marked) if top1] == [6, 7]  # 21.9 twice, as the paper prints it
    assert [i for i, (_, top5) in enumerate(marked) if top5] == [7]
    assert all(cell.best for row in table.rows for cell in row.cells)


def test_where_axes_are_searched_every_place_shows_the_best_setting() -> None:
    sweep = ablations.find("ablation.moments_layer_search")
    point = "over=IN,layer=after-stage-3,lam=0.7,p=0.25"
    table = tabled(swept(sweep, lambda one, seed: (25.0 if one.name == point else 26.0) + seed, seeds=2))
    assert (len(table.rows), len(table.columns)) == (4, 4)
    cell = table.rows[1].cells[3]
    assert (cell.point, cell.setting) == (point, "λ 0.7, p 0.25")
    assert table.rows[0].cells[0].paper == (25.9, 0.08)
    assert table.rows[0].cells[3].paper is None


def test_marginals_are_means_over_all_points_of_a_value_with_an_error_over_seeds() -> None:
    sweep = grid("mine", Recipe(), [axis("exchange.lam", 0.5, 0.9, title="λ"), axis("exchange.p", 0.5, 1.0)])
    numbers = {"lam=0.5,p=0.5": 1.0, "lam=0.5,p=1": 3.0, "lam=0.9,p=0.5": 5.0, "lam=0.9,p=1": 9.0}
    found = marginals(swept(sweep, lambda point, seed: numbers[point.name] + 2 * seed, seeds=2))
    means = {axis: [row.estimate and row.estimate.mean for row in rows] for axis, rows in found.items()}
    assert means == {"λ": [3.0, 8.0], "p": [4.0, 7.0]}
    assert [row.estimate and row.estimate.sem for row in found["λ"]] == [pytest.approx(1.0)] * 2
    holes = swept(sweep, lambda point, seed: None if (point.name, seed) == ("lam=0.5,p=1", 0) else 1.0, seeds=2)
    assert [row.numbers for row in marginals(holes)["λ"]] == [{1: 1.0}, {0: 1.0, 1: 1.0}]
    assert marginals(swept(listed("mine", {"a": Recipe(), "b": Recipe(epochs=2)}), lambda point, seed: 1.0)) == {}


# --- the document ----------------------------------------------------------------------------------------------------


def test_the_table_in_markdown_has_ours_beside_the_papers() -> None:
    text = markdown.of(document(layers()), whole=False)
    line = next(line for line in text.splitlines() if line.startswith("| LN"))
    assert [cell.strip() for cell in line.split("|")[2:8]] == [
        *("**26.10 ± 0.06**", "25.9 ± 0.08", "26.20 ± 0.06", "25.9 ± 0.07"),
        *("26.30 ± 0.10 (2 of 3)", "**25.6 ± 0.02**"),
    ]
    assert "**The lowest error of 12 points is that of PONO, before stage 2, 25.10 ± 0.06 %" in text
    assert "LN, before stage 3: failed: RunError: no room (seed 1)." in text
    assert "A setting that is chosen by it is chosen on the test images" in text
    assert "Bold: the lowest of each row. Paper: Table 9." in text
    assert "chosen on the test images" not in markdown.of(document(layers(split="validation")), whole=False)


def test_every_form_can_be_made_of_every_sweep() -> None:
    sweeps: list[Sweep] = [named.make() for named in ablations.names() if named.name.startswith("digits.")]
    for sweep in sweeps:
        for seeds in (0, 1, 2):
            found = document(swept(sweep, lambda point, seed: len(point.name) + seed, seeds=seeds or 1))
            assert sweep.title in markdown.of(found)
            assert r"\begin{tabular}" in latex.of(found)
    empty = document(swept(sweeps[0], lambda point, seed: None))
    assert "has not been run" in markdown.of(empty)
    assert "<table" in html.page([empty])


def test_a_page_has_a_map_of_two_axes_and_what_each_of_them_does() -> None:
    page = html.page([document(layers())])
    assert page.count('class="box') == 12
    assert page.count('class="box best"') == 4
    assert 'title="PONO, before stage 2: 25.10 ± 0.06 %"' in page
    assert "Error by moments" in page
    rows = html.page([document(swept(exchanges.lambda_p_rows(Recipe(), "mine"), lambda point, seed: 1.0 + seed))])
    assert rows.count('class="box none"') == 7 * 5 - 10


def test_colours_say_nothing_where_all_numbers_are_one() -> None:
    assert [depth(value, [1.0, 2.0, 5.0]) for value in (1.0, 5.0)] == [1.0, 0.0]
    assert depth(3.0, [3.0, 3.0]) is None
    assert depth(float("nan"), [1.0, 2.0]) is None


# --- momentex report -------------------------------------------------------------------------------------------------


def test_a_folder_of_sweeps_is_reported_and_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        store.write(tmp_path / name, layers())
    assert cli.main(["report", str(tmp_path), str(tmp_path / "one"), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.count("# Moments × layer: ResNet-110 on CIFAR-100") == 2
    assert cli.main(["report", str(tmp_path / "one"), "--sem", "corrected", "--format", "latex"]) == 0
    assert "small-sample correction" in capsys.readouterr().out
    assert cli.main(["report", str(tmp_path / "one")]) == 0
    assert 'class="heat"' in (tmp_path / "one" / "report.html").read_text()
