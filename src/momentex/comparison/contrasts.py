"""What may be compared, and which arms with which: named before anything is run."""

from __future__ import annotations

from collections.abc import Sequence

from momentex.errors import RecipeError, did_you_mean

Pairs = tuple[tuple[str, str], ...]


def check_arms(arms: Sequence[str]) -> None:
    """Two at least, each once."""
    if len(arms) < 2:
        raise RecipeError(f"a comparison needs two arms or more, and there is {', '.join(arms) or 'none'}.")


def check_seeds(seeds: Sequence[int], what: str = "a comparison") -> None:
    """One at least, each once."""
    if not seeds:
        raise RecipeError(f"{what} needs a seed at least: --seeds 5 are the seeds 0 to 4.")
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if list(seeds).count(seed) > 1)
        raise RecipeError(f"the seed {twice} is there twice: a run counts once.")


def of_arms(arms: Sequence[str]) -> tuple[Pairs, int]:
    """(arm, against) of recipes' arms, and how many of them are named beforehand.

    That is MoEx against label interpolation alone, which is the primary one, and MoEx against the baseline. Then every
    arm that has several methods is held against those with one of them less, X + MoEx against X and against MoEx, and
    every arm against the baseline.

    >>> of_arms(["baseline", "moex", "labels_only"])
    ((('moex', 'labels_only'), ('moex', 'baseline'), ('labels_only', 'baseline')), 2)
    >>> of_arms(["cutmix", "moex", "cutmix+moex"])[0][:2]
    (('cutmix+moex', 'cutmix'), ('cutmix+moex', 'moex'))
    """
    reference = "baseline" if "baseline" in arms else arms[0]
    named = [("moex", against) for against in ("labels_only", "baseline") if {"moex", against} <= set(arms)]
    others = [(arm, less) for arm in arms for less in _with_one_less(arm) if less in arms]
    others += [(arm, reference) for arm in arms if arm != reference]
    found = tuple(dict.fromkeys((*named, *others)))
    return found, max(1, len(named))


def _with_one_less(arm: str) -> list[str]:
    """`a+b` without b, then without a."""
    parts = arm.split("+")
    return ["+".join(parts[:i] + parts[i + 1 :]) for i in reversed(range(len(parts)))]


def of_names(arms: Sequence[str], asked: Sequence[tuple[str, str]] | None) -> tuple[Pairs, int]:
    """Those of arms that nobody here knows: as asked, or each against the first one."""
    if asked is None:
        return tuple((arm, arms[0]) for arm in arms[1:]), 1
    for pair in asked:
        if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]:
            raise RecipeError(f"the contrast {pair!r} must be (arm, against), two arms that are not the same.")
        for arm in pair:
            if arm not in arms:
                near = did_you_mean(arm, arms)
                raise RecipeError(
                    f"the contrast {tuple(pair)} names {arm!r}, which is no arm. {near} There are "
                    f"{', '.join(arms)}.".replace("  ", " ")
                )
    if not asked:
        raise RecipeError("contrasts is empty: name one at least, or leave it out.")
    return tuple((arm, against) for arm, against in dict.fromkeys(map(tuple, asked))), 1
