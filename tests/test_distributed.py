"""Two processes with gloo: each pairs its own samples, and all agree on coin, λ and layer."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

from momentex import Beta, MomentExchange, Plan
from tests.models import Checkpointed, Net, assert_same_gradients, batch, loss_by_hand, loss_in_block, net, rolled

RANKS = 2
LOCAL = 4  # samples of each rank
STEPS = 8


def _drawn(rank: int) -> list[tuple]:
    """The plans of some steps: what all ranks must share, and what must be this rank's own."""
    model = net(batch_norm=False)
    moex = MomentExchange(model, ("layer1", "layer2"), p=0.5, lam=Beta(1.0), seed=3)
    plans = []
    for step in range(STEPS):
        loss_in_block(model, moex, batch(LOCAL, seed=rank * 100 + step))
        plans.append((moex.plan.on, moex.plan.lam, moex.plan.layer, moex.plan.index.tolist()))
    return plans


def _trained(rank: int, reentrant: bool | None) -> dict[str, torch.Tensor]:
    """Gradients of one step under DistributedDataParallel, and the index that this rank drew."""
    arguments = {"batch_norm": False} | ({} if reentrant is None else {"reentrant": reentrant})
    model = net(Net if reentrant is None else Checkpointed, **arguments)
    moex = MomentExchange(model, "layer1", p=1.0, lam=0.8, pairing="derangement")
    wrapped = nn.parallel.DistributedDataParallel(model, static_graph=bool(reentrant))
    loss_in_block(wrapped, moex, batch(LOCAL, seed=rank)).backward()
    return {"index": moex.plan.index} | {name: p.grad for name, p in model.named_parameters()}


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/rendezvous", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    try:
        torch.manual_seed(0)  # as training scripts do: the same on all ranks
        found = {"plans": _drawn(rank)}
        for name, reentrant in (("plain", None), ("non_reentrant", False), ("reentrant", True)):
            found[name] = _trained(rank, reentrant)
        torch.save(found, f"{folder}/rank{rank}.pt")
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()
    # gloo aborts now and then while the interpreter takes itself apart ("terminate called without an active
    # exception"); what the test needs is on disk by now.
    os._exit(0)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two processes found."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    context = torch.multiprocessing.spawn(_work, (str(folder),), nprocs=RANKS, join=False)
    patience = time.monotonic() + 120
    while not context.join(timeout=5):  # true when all have ended; raises what a rank raised
        assert time.monotonic() < patience, "the ranks did not finish within two minutes"
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]


def test_two_ranks_share_coin_lam_and_layer_and_pair_their_own_samples(ranks: list[dict]) -> None:
    first, second = (found["plans"] for found in ranks)
    assert [plan[:3] for plan in first] == [plan[:3] for plan in second]
    assert {plan[0] for plan in first} == {True, False}
    assert {plan[2] for plan in first} == {"layer1", "layer2"}
    assert [plan[3] for plan in first if plan[0]] != [plan[3] for plan in second if plan[0]]


@pytest.mark.parametrize("kind", ["plain", "non_reentrant", "reentrant"])
def test_two_ranks_have_the_gradients_of_one_process_with_the_concatenated_batch_and_index(ranks, kind: str) -> None:
    index = torch.cat([found[kind]["index"] + LOCAL * rank for rank, found in enumerate(ranks)])
    parts = [batch(LOCAL, seed=rank) for rank in range(RANKS)]
    whole = parts[0]._replace(x=torch.cat([p.x for p in parts]), y=torch.cat([p.y for p in parts]))
    one = net(batch_norm=False)
    loss_by_hand(one, whole, Plan(index, 0.8, "layer1")).backward()
    assert not torch.equal(ranks[0][kind]["index"], ranks[1][kind]["index"])
    for found in ranks:
        other = net(batch_norm=False)
        for name, p in other.named_parameters():
            p.grad = found[kind][name]
        assert_same_gradients(other, one)


def test_an_explicit_rank_draws_what_that_rank_draws(ranks: list[dict]) -> None:
    for rank in range(RANKS):
        model = net(batch_norm=False)
        moex = MomentExchange(model, ("layer1", "layer2"), p=0.5, lam=Beta(1.0), seed=3, rank=rank)
        for on, lam, layer, index in ranks[rank]["plans"]:
            loss_in_block(model, moex, batch(LOCAL))
            assert (moex.plan.on, moex.plan.lam, moex.plan.layer) == (on, lam, layer)
            assert moex.plan.index.tolist() == index


def test_the_comparison_with_one_process_would_notice_another_pairing(ranks: list[dict]) -> None:
    parts = [batch(LOCAL, seed=rank) for rank in range(RANKS)]
    whole = parts[0]._replace(x=torch.cat([p.x for p in parts]), y=torch.cat([p.y for p in parts]))
    one = net(batch_norm=False)
    loss_by_hand(one, whole, Plan(rolled(RANKS * LOCAL, 3), 0.8, "layer1")).backward()
    assert not torch.allclose(one.stem.weight.grad, ranks[0]["plain"]["stem.weight"], rtol=1e-2)
