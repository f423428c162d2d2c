"""torch.compile: one graph for each of "exchanges here" and "does not", whatever is drawn; and what it computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from momentex import IN, LN, Beta, ExchangeSite, MomentExchange, Plan, exchange_moments
from momentex.errors import AttachmentError, LayerDidNotFire, MomentexWarning, StepError
from tests.models import (
    Net,
    Tokens,
    assert_same_gradients,
    batch,
    clear_gradients,
    loss_by_hand,
    loss_in_block,
    net,
    off,
    plan,
    rolled,
    same,
    twin,
)

pytestmark = pytest.mark.filterwarnings(
    # torch's own: Dynamo looks at .grad of every tensor that it is given.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor",
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiled:
    """A model, its object, and the compiled model, which counts its graphs. Without BatchNorm unless asked for."""

    def __init__(self, layer: str | tuple[str, ...] = "layer1", *, backend: str = "aot_eager", **arguments) -> None:
        self.eager = net(batch_norm=False)
        self.moex = MomentExchange(self.eager, layer, **({"p": 1.0} | arguments))
        self.counter = CompileCounterWithBackend(backend)
        self.model = torch.compile(self.eager, fullgraph=True, backend=self.counter)

    def step(self, given: Plan | None = None, size: int = 6, seed: int = 0) -> Tensor:
        loss = loss_in_block(self.model, self.moex, batch(size, seed), given)
        loss.backward()
        return loss

    @property
    def graphs(self) -> int:
        return self.counter.frame_count


def graphs_of_the_plain_model(sizes: list[int]) -> int:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = torch.compile(net(batch_norm=False), fullgraph=True, backend=counter)
    for size in sizes:
        F.cross_entropy(model(batch(size).x), batch(size).y).backward()
    torch._dynamo.reset()
    return counter.frame_count


# --- how many graphs -------------------------------------------------------------------------------------------------


def test_on_and_off_are_two_graphs_and_nothing_that_is_drawn_recompiles() -> None:
    c = Compiled()
    for given in (plan(), off(), plan(by=2), plan(lam=0.1), off(), plan(by=3, lam=1.0), plan(lam=0.0)):
        c.step(given)
    assert c.graphs == 2


def test_changing_p_lam_pairing_seed_and_rank_never_recompiles() -> None:
    c = Compiled(p=0.5)
    for seed in range(6):
        c.step(seed=seed)
    assert c.graphs == 2
    for p, lam, per, pairing in (
        (1.0, 0.3, "batch", "derangement"),
        (0.5, Beta(1.0), "sample", "other_class"),
        (0.9, lambda step: 0.5, "batch", "same_class"),
    ):
        c.moex.p, c.moex.lam, c.moex.per, c.moex.pairing = p, lam, per, pairing
        c.moex.seed, c.moex.rank = c.moex.seed + 1, 3
        for seed in range(3):
            c.step(seed=seed)
    assert c.graphs == 2


@pytest.mark.parametrize("sizes", [[6, 6, 6], [6, 6, 5], [6, 5, 4, 6, 3], [2, 7]], ids=str)
@pytest.mark.parametrize("layer", ["layer1", ("layer1", "layer2")], ids=["one_site", "two_sites"])
def test_graphs_are_at_most_one_more_per_site_than_the_plain_models_for_the_same_shapes(sizes, layer) -> None:
    limit = graphs_of_the_plain_model(sizes)
    c = Compiled(layer)
    for size in sizes:
        c.step(off(size), size)
        for name in c.moex.layers:
            c.step(plan(size, name), size)
    assert 1 < c.graphs <= (1 + len(c.moex.layers)) * limit


def test_a_short_last_batch_of_one_costs_no_graph_of_its_own_kind() -> None:
    limit = graphs_of_the_plain_model([6, 1])
    c = Compiled()
    for size in (6, 1, 6, 1):
        c.step(size=size)
    assert c.graphs <= 2 * limit


def test_passes_outside_of_blocks_use_the_graph_of_off_steps() -> None:
    c = Compiled()
    c.step(off())
    c.step(plan())
    F.cross_entropy(c.model(batch().x), batch().y).backward()
    assert c.graphs == 2


# --- what they compute -----------------------------------------------------------------------------------------------


def test_compiled_steps_have_the_values_and_gradients_of_eager_ones() -> None:
    c, by_hand = Compiled(p=0.5), net(batch_norm=False)
    on = set()
    for seed, size in enumerate((6, 6, 6, 5, 1, 4, 6)):
        loss = c.step(size=size, seed=seed)
        on.add(c.moex.plan.on)
        expected = loss_by_hand(by_hand, batch(size, seed), c.moex.plan)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        assert_same_gradients(c.eager, by_hand)
    assert on == {True, False}


@pytest.mark.parametrize("over", [IN(), LN(only="std")], ids=str)
@pytest.mark.parametrize("where", ["input", "output"])
def test_other_moments_and_places_compile_to_the_values_of_eager(over, where: str) -> None:
    c = Compiled(over=over, where=where)
    eager = net(batch_norm=False)
    moex = MomentExchange(eager, "layer1", over=over, where=where)
    torch.testing.assert_close(c.step(plan()), loss_in_block(eager, moex, batch(), plan()))


def test_the_default_compiler_has_the_values_and_gradients_of_eager_and_fixed_points_are_bit_identical() -> None:
    """Inductor. The layer is the whole model, so that nothing but the exchange could change a bit."""
    site = nn.Sequential(nn.Identity())
    moex = MomentExchange(site, "0")
    model = torch.compile(site, fullgraph=True)
    index = torch.tensor([0, 2, 1, 3, 4, 3])
    h = batch().x.requires_grad_()
    with moex(torch.arange(6), plan=Plan(index, 0.9, "0")):
        out = model(h)
    expected = exchange_moments(h, index)
    torch.testing.assert_close(out, expected)
    for i in (0, 3, 4):
        assert same(out[i], h[i])
    weight = torch.rand_like(out)
    torch.testing.assert_close(*(torch.autograd.grad((o * weight).sum(), h)[0] for o in (out, expected)))


def test_autocast_in_bf16_compiles_to_the_values_of_eager() -> None:
    c, eager = Compiled(), net(batch_norm=False)
    moex = MomentExchange(eager, "layer1")
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_in_block(c.model, c.moex, batch(), plan())
        expected = loss_in_block(eager, moex, batch(), plan())
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=2e-2)
    assert_same_gradients(c.eager, eager, close=2e-2)


def test_gradients_of_gradients_through_a_compiled_model_are_refused_and_not_wrong() -> None:
    c, at = Compiled(), batch()
    x = at.x.requires_grad_()
    loss = loss_in_block(c.model, c.moex, at._replace(x=x), plan())
    with pytest.raises(RuntimeError, match=r"double backward|create_graph=False"):
        torch.autograd.grad(loss, x, create_graph=True)[0].sum().backward()


def test_masks_compile_and_change_with_the_batch_without_recompiling() -> None:
    model = Tokens()
    moex = MomentExchange(model, "mix", over=IN(), channel_dim=-1)
    plain, counter = twin(model), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 7, 3, generator=generator)
        mask = torch.rand(4, 7, generator=generator) < 0.5
        mask[seed] = False
        with moex(torch.arange(4), mask=mask, plan=Plan(rolled(4), 0.9, "mix")):
            out = compiled(x)
        h = exchange_moments(plain.stem(x), rolled(4), IN(), mask=mask, channel_dim=-1)
        torch.testing.assert_close(out, plain.head(h.mean(1)))
    assert counter.frame_count == 1


def test_sets_of_different_sizes_compile() -> None:
    model = nn.Sequential(nn.Identity())
    moex = MomentExchange(model, "0", over=IN())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for sets in (torch.tensor([0, 0, 1, 1, 1, 2, 2]), torch.tensor([0, 1, 1, 2, 2, 2, 2, 2])):
        h = torch.randn(len(sets), 4)
        with moex(torch.arange(3), batch=sets, plan=Plan(rolled(3), 0.9, "0")):
            out = compiled(h)
        torch.testing.assert_close(out, exchange_moments(h, rolled(3), IN(), batch=sets))


def test_a_site_in_a_compiled_model_uses_the_mask_of_its_forward() -> None:
    class WithSite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.site = ExchangeSite()

        def forward(self, h: Tensor, mask: Tensor) -> Tensor:
            return self.site(h, mask=mask) * 2

    model = WithSite()
    moex = MomentExchange(model, "site", over=IN(), channel_dim=-1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    h, mask = torch.randn(3, 4, 5), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]) == 1
    with moex(torch.arange(3), plan=Plan(rolled(3), 0.9, "site")):
        out = compiled(h, mask)
    torch.testing.assert_close(out, exchange_moments(h, rolled(3), IN(), mask=mask, channel_dim=-1) * 2)


def test_the_operator_alone_compiled_equals_eager_in_values_and_gradients() -> None:
    eager, alone = net(batch_norm=False), net(batch_norm=False)
    moex, compiled = MomentExchange(eager, "layer1"), MomentExchange(alone, "layer1", compiled=True)
    for given in (plan(), off(), plan(by=2)):
        loss, expected = loss_in_block(alone, compiled, batch(), given), loss_in_block(eager, moex, batch(), given)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected)
        assert_same_gradients(alone, eager)


def test_the_operator_alone_compiled_serves_more_kinds_of_moments_than_torch_keeps_graphs_of_one_function() -> None:
    """A sweep in one process. torch's limit is 8 for one code object; it is 2 here to be quick."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for over in (IN(), IN(only="mean"), IN(only="std"), LN()):
            model = nn.Sequential(nn.Identity())
            moex = MomentExchange(model, "0", over=over, compiled=True)
            with moex(torch.arange(6), plan=Plan(rolled(6), 0.9, "0")):
                out = model(batch().x)
            torch.testing.assert_close(out, exchange_moments(batch().x, rolled(6), over))


# --- never silent ----------------------------------------------------------------------------------------------------


def test_a_hook_that_comes_after_the_first_compiled_call_of_a_hidden_compilation_is_found_on_leaving() -> None:
    """The compiled function hides the model, so attaching cannot refuse: the first block tells."""
    model, at = net(), batch()
    step = torch.compile(lambda x: model(x), backend="aot_eager")
    step(at.x)
    moex = MomentExchange(model, "layer1", p=1.0)
    with (
        pytest.raises(LayerDidNotFire, match=r"attach before torch\.compile, which does not see later hooks"),
        moex(at.y),
    ):
        step(at.x)


def test_a_hook_that_comes_before_a_hidden_compilation_works() -> None:
    model, at = net(batch_norm=False), batch()
    moex = MomentExchange(model, "layer1", p=1.0)
    step = torch.compile(lambda x: model(x), backend="aot_eager")
    with moex(at.y, plan=plan()) as targets:
        loss = targets.loss(F.cross_entropy, step(at.x))
    torch.testing.assert_close(loss, loss_by_hand(net(batch_norm=False), at, plan()))


def test_models_of_one_kind_are_compiled_one_after_the_other_in_one_process() -> None:
    """As for several seeds. The compiler would take the first one's graph, and the hook would pass for one unseen."""
    for number in range(3):
        model = net(batch_norm=False)
        moex = MomentExchange(model, "layer1", p=1.0)
        loss = loss_in_block(torch.compile(model, backend="aot_eager"), moex, batch(), plan(by=1 + number))
        torch.testing.assert_close(loss, loss_by_hand(net(batch_norm=False), batch(), plan(by=1 + number)))


def test_attaching_again_after_compiling_is_refused_even_if_the_first_object_was_removed() -> None:
    c = Compiled()
    c.step(plan())
    c.moex.remove()
    with pytest.raises(AttachmentError, match="compiled already"):
        MomentExchange(c.model, "layer1")


def test_after_removal_a_compiled_model_is_plain() -> None:
    c, plain = Compiled(), net(batch_norm=False)
    c.step(plan())
    c.moex.remove()
    torch.testing.assert_close(c.model(batch().x), plain(batch().x))


def test_a_compiled_model_whose_object_was_removed_inside_a_block_is_plain() -> None:
    c, plain = Compiled(), net(batch_norm=False)
    with c.moex(batch().y, plan=plan()) as targets:
        targets.loss(F.cross_entropy, c.model(batch().x))
        c.moex.remove()  # the graph still asks the hook
    torch.testing.assert_close(c.model(batch().x), plain(batch().x))


def test_a_compiled_block_without_a_forward_pass_is_an_error_in_the_first_step() -> None:
    c = Compiled()
    with pytest.raises(LayerDidNotFire, match="did not fire"), c.moex(batch().y):
        pass


@pytest.mark.xfail(reason="a compiled site is marked once, while it is traced", raises=pytest.fail.Exception)
def test_a_compiled_block_without_a_forward_pass_is_an_error_in_later_steps_too() -> None:
    c = Compiled()
    c.step(plan())
    with pytest.raises(LayerDidNotFire, match="did not fire"), c.moex(batch().y):
        pass


@pytest.mark.xfail(reason="a compiled site is marked once, while it is traced", raises=pytest.fail.Exception)
def test_an_eager_pass_and_a_compiled_one_in_one_block_are_an_error() -> None:
    c = Compiled()
    c.step(plan())
    with pytest.raises(LayerDidNotFire, match="fired"), c.moex(batch().y):  # noqa: PT012
        c.model(batch().x)
        c.eager(batch().x)


def test_labels_of_another_batch_size_are_an_error_under_the_compiler() -> None:
    model = net(batch_norm=False)
    moex = MomentExchange(model, "layer1", p=1.0)
    compiled = torch.compile(model, backend="aot_eager")
    with pytest.raises(StepError, match=r"sees a batch of 6 .*the labels are 4"):
        loss_in_block(compiled, moex, batch()._replace(y=batch(4).y))
    torch.testing.assert_close(compiled(batch().x), net(batch_norm=False)(batch().x))


def test_a_block_inside_a_compiled_function_draws_anew_in_every_call() -> None:
    """The plan is drawn outside of graphs: a compiled training step must not freeze the first one."""
    model, at, drawn = net(batch_norm=False), batch(), []
    moex = MomentExchange(model, "layer1", p=1.0)

    @torch.compile(backend="aot_eager")
    def step(x: Tensor, y: Tensor) -> Tensor:
        with moex(y) as targets:
            return targets.loss(F.cross_entropy, model(x))

    for _ in range(4):
        loss = step(at.x, at.y)
        drawn.append(tuple(moex.plan.index.tolist()))
        torch.testing.assert_close(loss, loss_by_hand(net(batch_norm=False), at, moex.plan))
    assert len(set(drawn)) == 4


def test_more_than_six_sites_under_the_compiler_are_warned_about_once() -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(7)])
    moex = MomentExchange(model, [str(i) for i in range(7)], p=1.0)
    compiled = torch.compile(model, backend="eager")
    seven = pytest.warns(MomentexWarning, match=r"7 layers under torch\.compile make 8 graphs.*recompile_limit")
    with seven, moex(torch.arange(6)):
        compiled(batch().x)
    with moex(torch.arange(6)):
        compiled(batch().x)


def test_six_sites_under_the_compiler_stay_below_torchs_limit() -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(6)])
    moex = MomentExchange(model, [str(i) for i in range(6)])
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    compiled(batch().x)
    for i in range(6):
        with moex(torch.arange(6), plan=Plan(rolled(6), 0.9, str(i))):
            out = compiled(batch().x)
        torch.testing.assert_close(out, exchange_moments(batch().x, rolled(6)))
    assert counter.frame_count == 7


def test_strength_is_unknown_when_all_passes_were_compiled() -> None:
    c = Compiled()
    c.step(plan())
    report = c.moex.diagnostics()
    assert report.strength is None
    assert report.exchanged_steps == 1.0


def test_the_compiled_model_is_plain_outside_of_blocks_in_train_and_eval() -> None:
    model, plain = net(), net()
    moex = MomentExchange(model, "layer1")
    compiled, plain_compiled = (torch.compile(m, backend="aot_eager", fullgraph=True) for m in (model, plain))
    loss_in_block(compiled, moex, batch(), plan()).backward()
    plain.load_state_dict(model.state_dict())
    for training in (True, False):
        assert same(compiled.train(training)(batch().x), plain_compiled.train(training)(batch().x))


def test_after_a_failed_backward_a_compiled_model_is_plain() -> None:
    c, plain = Compiled(), net(batch_norm=False)
    with c.moex(batch().y, plan=plan()) as targets:
        output = c.model(batch().x)
        loss = targets.loss(F.cross_entropy, output)
    output.register_hook(_fail)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    torch.testing.assert_close(c.model(batch().x), plain(batch().x))


def _fail(_grad: Tensor) -> None:
    raise ZeroDivisionError


def test_a_training_run_reduces_the_loss_compiled_as_in_eager() -> None:
    c, eager = Compiled(p=0.5), net(batch_norm=False)
    moex = MomentExchange(eager, "layer1")
    losses: list[list[float]] = []
    for model, owner, parameters in ((c.model, c.moex, c.eager), (eager, moex, eager)):
        optimizer, found = torch.optim.SGD(parameters.parameters(), lr=0.1), []
        for _ in range(10):
            clear_gradients(parameters)
            loss = loss_in_block(model, owner, batch())
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_the_net_of_these_tests_compiles_to_one_graph_without_us() -> None:
    assert graphs_of_the_plain_model([6, 6]) == 1
    assert isinstance(net(), Net)
