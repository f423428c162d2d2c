"""The exchange of a recipe, for every step: a block, whether it does nothing, mixes labels only, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from momentex.augment.label_smoothing import over_all
from momentex.errors import RecipeError
from momentex.moex import MomentExchange
from momentex.opened import enough_positions
from momentex.pairing import Policy, sit_out
from momentex.targets import Targets
from momentex.train.recipe import Exchange
from momentex.train.task import Batch

Block = AbstractContextManager[Targets]


class Mixing(NamedTuple):
    """`block(batch, targets, step, on)` goes around forward pass and loss; `log()` says what has happened since it was
    last asked. The targets are those of the batch, mixed already where images were.
    """

    block: Callable[[Batch, Targets, int, bool], Block]
    log: Callable[[], Mapping[str, float]]


def no_mixing() -> Mixing:
    def block(batch: Batch, targets: Targets, step: int, on: bool) -> Block:
        return nullcontext(targets)

    return Mixing(block, dict)


def mixing(
    exchange: Exchange | None, model: nn.Module, site: str | None, *, seed: int, rank: int, classes: int | None = None
) -> Mixing:
    """Attach what the recipe asks for. Plans are a function of seed, step and rank: arms of one seed draw the same."""
    if exchange is None:
        return no_mixing()
    if not exchange.features:
        return _labels_only(exchange, seed, rank)
    layer = layer_of(exchange, site)
    moex = MomentExchange(
        model,
        layer,
        over=exchange.over,
        lam=1.0 if exchange.labels == "others" else exchange.lam,
        p=exchange.p,
        per=exchange.per,
        where=exchange.where,
        pairing=exchange.pairing,
        seed=seed,
        rank=rank,
        channel_dim=exchange.channel_dim,
        skip=exchange.skip,
        eps=exchange.eps,
        compiled=exchange.compiled,
    )

    def block(batch: Batch, targets: Targets, step: int, on: bool) -> Block:
        moex.step, moex.enabled = step, on
        return moex(targets, mask=batch.facts.get("mask"), batch=batch.facts.get("batch"))

    log = lambda: moex.diagnostics(reset=True).flat()  # noqa: E731
    return Mixing(block if exchange.labels == "partner" else _smoothing(exchange, moex, block, classes), log)


def _smoothing(
    exchange: Exchange, moex: MomentExchange, block: Callable[[Batch, Targets, int, bool], Block], classes: int | None
) -> Callable[[Batch, Targets, int, bool], Block]:
    """The block of an exchange with λ = 1; whoever gets another one's moments has its label smoothed instead."""
    if classes is None:
        raise RecipeError(
            "exchange.labels is 'others', and this task has no classes: labels can be mixed with the partner's alone."
        )
    amount = over_all(1 - exchange.lam, classes, "others")

    @contextmanager
    def smoothing(batch: Batch, targets: Targets, step: int, on: bool) -> Iterator[Targets]:
        with block(batch, targets, step, on) as exchanged:
            plan = moex.plan
            if plan is not None and plan.on:
                index = _partners(plan.index, batch, exchange.skip)
                given = index != torch.arange(len(index), device=index.device)
                exchanged = exchanged.smoothed(given.to(batch.labels.device).float() * amount, classes)
            yield exchanged

    return smoothing


def layer_of(exchange: Exchange, site: str | None) -> str:
    """Where moments are exchanged: at the layer of the recipe, or at the site that is known of the model."""
    layer = exchange.layer or site
    if layer is None:
        raise RecipeError(
            "exchange.layer is not given, and nobody has recorded a first stage for this model. Name a layer: "
            "`momentex layers MODEL` lists them."
        )
    return layer


def _labels_only(exchange: Exchange, seed: int, rank: int) -> Mixing:
    """What would be left of Moment Exchange if its layer never fired: the same coin, pairs and λ."""
    policy = Policy(exchange.lam, exchange.p, exchange.per, exchange.pairing)

    def block(batch: Batch, targets: Targets, step: int, on: bool) -> Block:
        if on:
            plan = policy.draw(seed, step, len(targets), rank=rank, labels=batch.labels)
            if plan.on:
                targets = targets.mixed_with(_partners(plan.index, batch, exchange.skip), plan.lam)
        return nullcontext(targets)

    return Mixing(block, dict)


def _partners(index: Tensor, batch: Batch, skip: int) -> Tensor:
    """Who could not exchange features, having too few valid positions, keeps its label too."""
    mask = batch.facts.get("mask")
    mask = None if mask is None else (mask != 0)[:, skip:]
    enough = enough_positions(mask, batch.facts.get("batch"), len(batch.labels))
    return index if enough is None else sit_out(index.to(enough.device), enough)
