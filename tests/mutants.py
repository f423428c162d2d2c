"""Plant one fault at a time in a copy of the sources, and see that the tests that must catch it turn red.

Run as `python tests/mutants.py`. It fails, and names the mutant, if its tests stay green, if they break in another way
than by failing, if what is to be replaced is not there exactly once, or if the sources without a fault are not green.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    name: str
    source: str
    old: str
    new: str
    test: str  # the file that must catch it
    those: str  # the tests of it that are run, as -k understands it


EXCHANGE, TWINS, NUMERICS = "test_exchange.py", "test_exchange_twins.py", "test_exchange_numerics.py"
LISTING = "is_the_papers_listing and (float64 or float32)"

MUTANTS = [
    # exchange.py, fast path
    Mutant(
        "the mean of nobody",
        "exchange.py",
        "received = own.mean.index_select(0, index) if moves.mean else own.mean",
        "received = own.mean",
        EXCHANGE,
        LISTING,
    ),
    Mutant(
        "the deviation of nobody",
        "exchange.py",
        "return std.index_select(0, index).div_(std)",
        "return std.clone().div_(std)",
        EXCHANGE,
        LISTING,
    ),
    Mutant(
        "mean and std swapped",
        "exchange.py",
        "work).mul_(gain[rows]).add_(add[rows])",
        "work).mul_(add[rows]).add_(gain[rows])",
        EXCHANGE,
        LISTING,
    ),
    Mutant(
        "nothing is exchanged",
        "exchange.py",
        "_Fast.apply(v, index, ",
        "_Fast.apply(v, torch.arange(len(index)), ",
        EXCHANGE,
        "moments_of_its_partner",
    ),
    Mutant(
        "eps outside of the root",
        "exchange.py",
        "variance.add_(groups.eps).sqrt_()",
        "variance.sqrt_().add_(groups.eps)",
        EXCHANGE,
        "what_it_is_by_hand and vectors",
    ),
    Mutant(
        "no gradient to the donor",
        "exchange.py",
        "torch.zeros_like(m) if detach else",
        "torch.zeros_like(m) if True else",
        EXCHANGE,
        LISTING,
    ),
    Mutant(
        "gradient to the donor in spite of detach",
        "exchange.py",
        "torch.zeros_like(m) if detach else",
        "torch.zeros_like(m) if False else",
        EXCHANGE,
        "detached_moments_are_constants",
    ),
    Mutant(
        "no gradient through one's own moments",
        "exchange.py",
        "return received.sub_(m.mul_(gain))",
        "return received",
        EXCHANGE,
        LISTING,
    ),
    Mutant(
        "a fixed point is computed",
        "exchange.py",
        "own.mean.masked_fill(stays, 0.0)",
        "own.mean",
        EXCHANGE,
        "fixed_points_are_exact or paired_with_itself",
    ),
    Mutant(
        "a fixed point loses the sign of zero",
        "exchange.py",
        "received.masked_fill(stays, -0.0)",
        "received.masked_fill(stays, 0.0)",
        EXCHANGE,
        "paired_with_itself and images",
    ),
    Mutant(
        "samples with too few positions take part",
        "exchange.py",
        "sit_out(index.to(h.device), opened.groups.enough)",
        "index.to(h.device)",
        EXCHANGE,
        "too_few_positions",
    ),
    Mutant(
        "padding is overwritten",
        "exchange.py",
        "if mask is not None:\n        torch.where(",
        "if False:\n        torch.where(",
        EXCHANGE,
        "padding_never_matters and masked",
    ),
    Mutant(
        "only one moment, and the other too",
        "exchange.py",
        'self.over.centred and self.over.only != "std"',
        "self.over.centred",
        EXCHANGE,
        "shifts_and_moving",
    ),
    Mutant(
        "the features are overwritten",
        "exchange.py",
        "_write(out, rows, work, groups.mask, v)",
        "_write(out, rows, work, groups.mask, v), v[rows].copy_(out[rows])",
        NUMERICS,
        "their_strides_and_their_numbers and images",
    ),
    # exchange.py, readable reference
    Mutant(
        "the readable reference has no partner",
        "exchange.py",
        "partner = own.at(index)",
        "partner = own",
        TWINS,
        "is_the_readable_reference and images",
    ),
    Mutant(
        "the readable reference ignores detach",
        "exchange.py",
        "if moves.detach:",
        "if False:",
        TWINS,
        "is_the_readable_reference and images",
    ),
    Mutant(
        "second derivatives are taken of a constant",
        "exchange.py",
        "create_graph=differentiable",
        "create_graph=False",
        TWINS,
        "gradients_of_gradients and PONO",
    ),
    # moments.py, opened.py
    Mutant(
        "mean and std are picked crosswise",
        "moments.py",
        "Moments(self.mean.index_select(0, index), self.std.index_select(0, index))",
        "Moments(self.std.index_select(0, index), self.mean.index_select(0, index))",
        "test_moments.py",
        "moments_can_be_picked",
    ),
    Mutant(
        "normalize has eps outside of the root",
        "moments.py",
        "(variance + groups.eps).sqrt()",
        "variance.sqrt() + groups.eps",
        "test_moments.py",
        "moments_are_those_of",
    ),
    Mutant(
        "moments in the dtype of the features",
        "moments.py",
        "torch.float64 if h.dtype == torch.float64 else torch.float32",
        "h.dtype",
        NUMERICS,
        "short_dtypes",
    ),
    Mutant(
        "the mask is ignored",
        "opened.py",
        "return v if self.mask is None else torch.where(self.mask, v, 0)",
        "return v",
        EXCHANGE,
        "by_hand and masked",
    ),
    Mutant(
        "skipped positions come back in another order in memory",
        "opened.py",
        "return torch.cat([self._in_order(self.prefix), h], dim=positions)",
        "return torch.cat([self._in_order(self.prefix).mT, h.mT], dim=2).mT",
        NUMERICS,
        "their_strides_and_their_numbers and prefix",
    ),
    Mutant(
        "correction is ignored",
        "opened.py",
        "return self.size - self.correction",
        "return self.size - 1",
        EXCHANGE,
        "what_it_is_by_hand and vectors",
    ),
    # pairing.py
    Mutant(
        "the coin depends on the rank",
        "pairing.py",
        'self._stream(seed, step, "coin"), device',
        'self._stream(seed, step, "coin", rank), device',
        "test_pairing.py",
        "ignore_the_rank",
    ),
    Mutant(
        "all ranks have one pairing",
        "pairing.py",
        'self._stream(seed, step, "pairing", rank)',
        'self._stream(seed, step, "pairing")',
        "test_pairing.py",
        "pairings_change",
    ),
    Mutant(
        "pairings are drawn on the default device",
        "pairing.py",
        "        return torch.randperm(size, generator=generator, device=CPU)",
        "        return torch.randperm(size, generator=generator)",
        "test_pairing.py",
        "default_device",
    ),
    Mutant(
        "the generator sees 32 bits of the seed",
        "pairing.py",
        'f"{seed}/{step}',
        'f"{seed % 2**32}/{step}',
        "test_pairing.py",
        "thirty_second",
    ),
    Mutant(
        "the same class is the other one",
        "pairing.py",
        'if pairing == "same_class" else ~same',
        'if pairing == "same_class" else same',
        "test_pairing.py",
        "of_another_class",
    ),
    # targets.py
    Mutant(
        "λ is the weight of the partner",
        "targets.py",
        "checked_lam(lam, len(self))",
        "checked_lam(1.0 - lam, len(self))",
        "test_targets.py",
        "is_the_papers_listing",
    ),
    Mutant(
        "the labels of nobody",
        "targets.py",
        "Term(_pick(t, index), ",
        "Term(t, ",
        "test_targets.py",
        "is_the_papers_listing",
    ),
    Mutant(
        "partners come without their own weights",
        "targets.py",
        "_pick(w, index)",
        "w",
        "test_targets.py",
        "bring_their_own_weights",
    ),
    Mutant(
        "cross_entropy divides by the batch",
        "targets.py",
        "count = counted.sum()",
        "count = torch.tensor(counted.numel())",
        "test_targets.py",
        "ignored_as_torch",
    ),
    # attach.py, blocks.py, replay.py
    Mutant(
        "the layer fires and nothing is exchanged",
        "attach.py",
        "return _replaced(container, path, new)",
        "return _replaced(container, path, h)",
        "test_moex.py",
        "operator_written_by_hand",
    ),
    Mutant(
        "the layer is armed after the block",
        "blocks.py",
        "        blocks.open = None\n        blocks.set(None, plan.layer)",
        "        blocks.open = None",
        "test_silence.py",
        "outside_of_blocks",
    ),
    Mutant(
        "labels are mixed where the coin said no",
        "blocks.py",
        "blocks.tally.add(plan, index, targets.labels)",
        "blocks.tally.add(plan, index, targets.labels)\n        targets = targets.mixed_with(index.roll(1), 0.5)",
        "test_moex.py",
        "off_step",
    ),
    Mutant(
        "a layer that did not fire is no error",
        "blocks.py",
        "if kind is None and plan.on:",
        "if False:",
        "test_attach.py",
        "found_when_the_block_ends",
    ),
    Mutant(
        "recomputation is plain",
        "attach.py",
        "return self.replay.facts()",
        "return None",
        "test_checkpoint.py",
        "one_block_has",
    ),
    Mutant(
        "recomputation is of the last block",
        "replay.py",
        "if block.start <= number and (block.end is None or number < block.end):",
        "if True:",
        "test_checkpoint.py",
        "three_blocks or plain_pass",
    ),
    Mutant(
        "a failed backward pass leaves a compiled model armed",
        "replay.py",
        "    weakref.finalize(end, callback)\n    torch.autograd.Variable._execution_engine.queue_callback(end)",
        "    torch.autograd.Variable._execution_engine.queue_callback(callback)",
        "test_replay.py",
        "noticed_also_when_it_fails",
    ),
    # sweeps
    Mutant(
        "the worst is marked",
        "swept/table.py",
        "if number == min(numbers.values())]",
        "if number == max(numbers.values())]",
        "test_swept.py",
        "marked",
    ),
    Mutant(
        "the worst setting of a search is shown",
        "swept/table.py",
        "or mean(point) < mean(found[place]):",
        "or mean(point) > mean(found[place]):",
        "test_swept.py",
        "searched",
    ),
    Mutant(
        "a marginal over seeds that not all points have",
        "swept/table.py",
        "if all(seed in numbers for numbers in points)]",
        "if any(seed in numbers for numbers in points)]",
        "test_swept.py",
        "marginals",
    ),
    Mutant(
        "any folder of a sweep will do",
        "swept/folder.py",
        "elif lines := changed(before.sweep, sweep):",
        "elif lines := changed(before.sweep, before.sweep):",
        "test_sweep_verb.py",
        "another_sweep",
    ),
    Mutant(
        "what is reported outlives a flag",
        "sweep/grid.py",
        "return made if identity(made) == identity(recipe) else replace(made, paper=None)",
        "return made",
        "test_sweep_grid.py",
        "reports",
    ),
    Mutant(
        "points that are one recipe",
        "sweep/grid.py",
        "if same is not point:",
        "if same is None:",
        "test_sweep_grid.py",
        "no_sweep",
    ),
    Mutant(
        "a search by test images",
        "sweep/search.py",
        "if not point.recipe.data.validation:",
        "if False:",
        "test_sweep_search.py",
        "without_held_out",
    ),
    Mutant(
        "good runs are pruned",
        "sweep/pruning.py",
        "if lowest > at.get(epoch, math.inf):",
        "if lowest < at.get(epoch, -math.inf):",
        "test_sweep_search.py",
        "median_pruner",
    ),
    Mutant(
        "complete runs are given to a cluster again",
        "sweep/ray_cluster.py",
        "if not is_complete(job)]",
        "if job]",
        "test_sweep_ray.py",
        "need_no_cluster",
    ),
    # comparison and report
    Mutant(
        "differences the other way around",
        "comparison/statistics.py",
        "differences = [a - b for a, b",
        "differences = [b - a for a, b",
        "test_comparison_statistics.py",
        "interval_and_p_are_those_of_scipys",
    ),
    Mutant(
        "several contrasts, and none corrected",
        "comparison/analysis.py",
        "p = contrast.p if contrast.p_adjusted is None else contrast.p_adjusted",
        "p = contrast.p",
        "test_comparison_analysis.py",
        "a_difference_that_correction_takes_away",
    ),
    Mutant(
        "the plain standard error under the name of the other",
        "report/cells.py",
        'return estimate.sem if sem == "plain" else estimate.sem_corrected',
        "return estimate.sem",
        "test_report_html.py",
        "standard_error_is_the_one_that_is_named",
    ),
    Mutant(
        "names that are markup",
        "report/markup.py",
        "Markup(escape(FORBIDDEN.sub(",
        "Markup(str(FORBIDDEN.sub(",
        "test_report_html.py",
        "what_a_user_wrote_is_text or any_text_survives",
    ),
    Mutant(
        "dots where their numbers are not",
        "report/strips.py",
        "        across = scale.share(value)\n",
        "        across = scale.share(-value)\n",
        "test_report_html.py",
        "dots_and_intervals_lie_where",
    ),
    # augment
    Mutant(
        "λ of the partner in mixup",
        "augment/mixup.py",
        ".lerp_(x, weight)",
        ".lerp_(x, 1 - weight)",
        "test_augment_images.py",
        "mixup_is_the_average",
    ),
    Mutant(
        "λ of the partner in mixup of large images",
        "augment/mixup.py",
        "torch.lerp(images[partner], own, lam,",
        "torch.lerp(own, images[partner], lam,",
        "test_augment_images.py",
        "large_images",
    ),
    Mutant(
        "the area of the box is the sample's own",
        "augment/cutmix.py",
        "1 - box.area / (height * width)",
        "box.area / (height * width)",
        "test_augment_images.py",
        "pasting_pixel_by_pixel",
    ),
    Mutant(
        "one pastes from oneself",
        "augment/cutmix.py",
        "patch = partners(hole, index)",
        "patch = hole.clone()",
        "test_augment_images.py",
        "pasting_pixel_by_pixel",
    ),
    Mutant(
        "boxes of twice the side",
        "augment/drawing.py",
        "half = sides // 2",
        "half = sides",
        "test_augment_images.py",
        "published_one",
    ),
    Mutant(
        "smoothing over the others is over all",
        "augment/label_smoothing.py",
        "return smoothing / most",
        "return smoothing",
        "test_augment_labels.py",
        "formula_of_the_ablation",
    ),
    Mutant(
        "partners of the exchange are not shared",
        "train/augmenting.py",
        'shared = method.pairs == "shared"',
        'shared = method.pairs == "own"',
        "test_train_augmenting.py",
        "pairing_of_the_exchange",
    ),
    # feature
    Mutant(
        "λ is the weight of the partner in manifold mixup",
        "feature/manifold_mixup.py",
        "torch.lerp(partner.to(work), h.to(work), weight)",
        "torch.lerp(h.to(work), partner.to(work), weight)",
        "test_feature_manifold_mixup.py",
        "formula_by_hand",
    ),
    Mutant(
        "blocks begin as often at the edge as if they could",
        "feature/dropblock.py",
        "(height - size + 1) * (width - size + 1)",
        "height * width",
        "test_feature_dropblock.py",
        "about_the_share or torchvisions",
    ),
    Mutant(
        "the gradient of ShakeDrop has the forward coefficient",
        "feature/shakedrop.py",
        "ctx.save_for_backward(inputs[2])",
        "ctx.save_for_backward(inputs[1])",
        "test_feature_branches.py",
        "papers_formula",
    ),
    Mutant(
        "the first block always survives",
        "feature/branch.py",
        "1 - (block + 1) / blocks",
        "1 - block / blocks",
        "test_feature_branches.py",
        "decays_linearly",
    ),
]


# One process imports what is slow and is forked for every run; nobody in it has imported momentex.
FRESH = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "pytest", "hypothesis", "numpy", "scipy.stats", "sybil"]
LIMIT = 120  # seconds: a mutant may loop for ever


class Outcome(NamedTuple):
    code: int | None
    text: str


def _run_here(sources: str, output: str, arguments: list[str]) -> None:
    sys.dont_write_bytecode = True
    sys.path.insert(0, sources)
    with open(output, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        import momentex  # the copy must win over an installed one

        if not momentex.__file__.startswith(sources):
            sys.exit(f"these are other sources: {momentex.__file__}")
        import pytest

        code = pytest.main(arguments)
    sys.exit(int(code))


def run(sources: Path, test: str, those: str) -> Outcome:
    """These tests, against these sources, in a process of their own."""
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "--capture=sys",
        "--assert=plain",
        "--hypothesis-profile=unshrunk",
    ]
    output = sources.parent / f"{test}.txt"
    arguments = [*options, f"--rootdir={ROOT}", str(ROOT / "tests" / test), "-k", those]
    process = FRESH.Process(target=_run_here, args=(str(sources), str(output), arguments))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
    return Outcome(process.exitcode, output.read_text(encoding="utf-8") if output.exists() else "")


def copied(folder: str) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / "src", Path(folder).resolve() / "src", ignore=ignore))


def plant(mutant: Mutant, sources: Path) -> str:
    """Change one place in `sources`; what is wrong with that, or nothing."""
    path = sources / "momentex" / mutant.source
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return (
            f"to be replaced exactly once, but found {text.count(mutant.old)} times in {mutant.source}: {mutant.old!r}"
        )
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return ""


def hunt(mutant: Mutant) -> tuple[bool, str]:
    """Whether it was caught, and by which test (or why not)."""
    with tempfile.TemporaryDirectory(prefix="momentex-mutant-") as folder:
        sources = copied(folder)
        if problem := plant(mutant, sources):
            return False, problem
        done = run(sources, mutant.test, mutant.those)
    red = re.findall(r"^FAILED \S*?::(\S+)", done.text, flags=re.MULTILINE)
    if done.code == 1 and red:
        return True, red[0]
    return False, "stayed green" if done.code == 0 else f"no test failed, but:\nexit code {done.code}\n{done.text}"


def check_green() -> str:
    """What is red without a fault: then red shows nothing."""
    wanted = sorted({(mutant.test, mutant.those) for mutant in MUTANTS})
    with tempfile.TemporaryDirectory(prefix="momentex-sound-") as folder:
        sources = copied(folder)
        with ThreadPoolExecutor(max_workers=2) as pool:
            done = list(pool.map(lambda pair: run(sources, *pair), _by_file(wanted)))
    return "\n".join(f"exit code {d.code}\n{d.text}" for d in done if d.code != 0)


def _by_file(wanted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    files = sorted({test for test, _ in wanted})
    return [(file, " or ".join(f"({those})" for test, those in wanted if test == file)) for file in files]


def main() -> int:
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    FRESH.set_forkserver_preload(PRELOADED)
    if red := check_green():
        print(f"The tests are not green without a fault:\n{red}")
        return 1
    print(f"The tests are green without a fault. {len(MUTANTS)} mutants:\n", flush=True)
    escaped = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for mutant, (caught, what) in zip(MUTANTS, pool.map(hunt, MUTANTS), strict=True):
            row = (
                f"{'caught ' if caught else 'ESCAPED'}  {mutant.name:45}  {mutant.source:12}  {mutant.test:26}  {what}"
            )
            print(row, flush=True)
            escaped += [] if caught else [mutant.name]
    print(
        f"\n{len(MUTANTS) - len(escaped)} of {len(MUTANTS)} caught." + "".join(f"\nEscaped: {name}" for name in escaped)
    )
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
