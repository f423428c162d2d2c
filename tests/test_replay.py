"""Whose facts a call during backward gets: found by the graph node that is being differentiated."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from momentex.errors import StepError
from momentex.replay import HELD, Replay, in_backward, keep, when_backward_ends

X = torch.ones(2, requires_grad=True)


def asking(replay: Replay[str], answers: list[str | None], x: Tensor = X) -> Tensor:
    """A tensor whose gradient asks the replay, as a layer that is run again does."""

    class Ask(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h: Tensor) -> Tensor:
            return h.clone()

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            answers.append(replay.facts())
            return grad

    return Ask.apply(x).sum()


def in_block(replay: Replay[str], facts: str, answers: list[str | None]) -> Tensor:
    block = replay.open(facts)
    found = asking(replay, answers)
    replay.close(block)
    return found


def kept_in_block(replay: Replay[str], facts: str, answers: list[str | None]) -> Tensor:
    """As `in_block`, and the graph is shown."""
    block = replay.open(facts)
    found = asking(replay, answers)
    keep(block, found)
    replay.close(block)
    return found


def test_every_node_gets_the_facts_of_the_block_in_which_it_was_made() -> None:
    replay, answers = Replay[str](), []
    nodes = [asking(replay, answers), in_block(replay, "first", answers), asking(replay, answers)]
    nodes += [in_block(replay, "second", answers), asking(replay, answers)]
    sum(nodes).backward()
    assert answers == [None, "second", None, "first", None]  # the youngest node comes first


def test_a_block_that_is_open_answers_too() -> None:
    replay, answers = Replay[str](), []
    older = in_block(replay, "first", answers)
    second = replay.open("second")
    (older + asking(replay, answers)).backward()
    replay.close(second)
    assert answers == ["second", "first"]


def test_a_backward_pass_inside_of_another_one_is_of_the_same_block() -> None:
    replay, answers = Replay[str](), []

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h: Tensor) -> Tensor:
            return h.clone()

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            answers.append(replay.facts())
            with torch.enable_grad():
                inner = asking(replay, answers, torch.ones(2, requires_grad=True))
            inner.backward()  # its nodes are new: made in the block "open", if their numbers were asked
            return grad

    first = replay.open("first")
    outer = Outer.apply(X).sum()
    replay.close(first)
    plain = Outer.apply(X).sum()
    replay.open("open")
    (outer + plain).backward()
    assert answers == [None, None, "first", "first"]


def test_a_failed_backward_pass_leaves_nothing_behind() -> None:
    replay, answers = Replay[str](), []

    def fail(_grad: Tensor) -> None:
        raise ZeroDivisionError

    failed = replay.open("failed")
    x = X * 1
    x.register_hook(fail)
    failing = asking(replay, answers, x)
    replay.close(failed)
    with pytest.raises(ZeroDivisionError):
        failing.backward()
    in_block(replay, "next", answers).backward()
    asking(replay, answers).backward()
    assert answers == ["failed", "next", None]


def test_any_number_of_blocks_may_wait_whose_graphs_were_shown() -> None:
    replay, answers = Replay[str](), []
    waiting = [kept_in_block(replay, str(i), answers) for i in range(2 * HELD)]
    waiting[0].backward()
    assert answers == ["0"]
    sum(waiting[1:]).backward()
    assert sorted(answers) == sorted(map(str, range(2 * HELD)))


def test_a_block_whose_graph_was_shown_ends_with_it() -> None:
    class Facts:
        pass

    replay, facts = Replay[Facts](), Facts()
    alive = weakref.ref(facts)
    loss = kept_in_block(replay, facts, [])
    del facts
    gc.collect()
    assert alive() is not None
    del loss
    gc.collect()
    assert alive() is None


def test_of_graphs_that_nobody_showed_the_oldest_is_forgotten_which_is_an_error_and_not_a_guess() -> None:
    replay, answers = Replay[str](), []
    first = in_block(replay, "first", answers)
    second = in_block(replay, "second", answers)
    for i in range(HELD - 1):
        in_block(replay, str(i), answers)
    second.backward()
    assert answers == ["second"]
    with pytest.raises(StepError, match=f"more than {HELD} blocks whose losses did not come from their targets"):
        first.backward()


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_backward_pass_is_noticed_also_when_it_fails(fails: bool) -> None:
    from functools import partial

    ends: list[str] = []

    def hook(_grad: Tensor) -> None:
        assert in_backward()
        when_backward_ends(partial(ends.append, "end"))
        assert not ends
        if fails:
            raise ZeroDivisionError

    x = X * 1
    x.register_hook(hook)
    if fails:
        with pytest.raises(ZeroDivisionError):
            x.sum().backward()
    else:
        x.sum().backward()
    assert ends == ["end"]
    assert not in_backward()
