# SPDX-License-Identifier: Apache-2.0
"""What a forward saves is kept, computed again or moved, and no result tells which."""

import copy
import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from compare import Tolerance, assert_same, observe
from torch import nn
from torch._inductor.utils import run_and_get_code
from zoo import Mlp, normal

import anabranch
from anabranch import _compat, errors
from anabranch._core.offload import Choice
from anabranch._offload import activation_memory, copies, recompute, rewrite, saved

pytestmark = pytest.mark.own
WIDTH, TOKENS = 16, 12


@pytest.fixture(autouse=True)
def small_tensors_move(monkeypatch):
    monkeypatch.setattr(saved, "LEAST_BYTES", 64)


class Block(nn.Module):
    def __init__(self, wraps=lambda function: function):
        super().__init__()
        self.norm, self.into = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.up, self.down = (nn.Linear(*sizes) for sizes in (
            (WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)))
        self.mix = wraps(self.mix)

    def mix(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        q, k, v = self.into(self.norm(x)).view(*x.shape[:2], 3, 2, -1).transpose(1, 3).unbind(2)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return x + self.mix(x + self.out(attended.reshape(x.shape)))


class Model(nn.Module):
    def __init__(self, wraps=lambda function: function):
        super().__init__()
        self.block = Block(wraps)

    def forward(self, x):
        return self.block(x).tanh()


def call_of(model, **options):
    return torch.compile(model, backend="anabranch", dynamic=False, options=options)


def explained(call, *inputs):
    """What was planned for the forward graphs of a call."""
    told = anabranch.explain(lambda: call(*inputs))
    return [graph.activations for graph in told.graphs if graph.kind == "forward"]


def batch(seed=3):
    return normal(seed, 2, TOKENS, WIDTH).requires_grad_()


def assert_is_eager(model, call):
    reference = copy.deepcopy(model)
    for seed in range(2):
        assert_same(observe(call, model, (batch(seed),)),
                    observe(reference, reference, (batch(seed),)), Tolerance())


def made(wraps=lambda function: function):
    torch.manual_seed(1)
    return Model(wraps)


@pytest.mark.parametrize("budget", [
    1.0, pytest.param(0.5, marks=pytest.mark.oldest), 0.2, 0, "fit"])
def test_whatever_the_budget_results_and_gradients_are_eagers(budget):
    model = made()
    call = call_of(model, activation_memory=budget, allow={616})
    assert_is_eager(model, call)
    (planned,) = explained(call, batch())
    assert {tensor.choice for tensor in planned.tensors} <= {"keep", "recompute", "offload"}
    is_cut = isinstance(budget, (int, float)) and budget < 1
    assert bool(planned.of("recompute") or planned.of("offload")) == is_cut
    if planned.reason == "":
        assert planned.peak_bytes <= planned.budget_bytes
    assert 0 < planned.step_peak_bytes <= planned.step_kept_bytes
    assert (planned.step_peak_bytes == planned.step_kept_bytes) != is_cut


class Convolutions(nn.Module):
    """Inductor lays out what is between convolutions as these like it, not as it was traced."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = (nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8),
                                         nn.Conv2d(8, 4, 3, padding=1))

    def forward(self, x):
        return self.down(F.silu(self.norm(self.up(x)))).sigmoid()


def test_what_only_the_forward_has_is_handed_over_where_it_is_computed_from(monkeypatch):
    """A product's bias, which no gradient needs; nor is attention without dropout random."""
    tensor_of = activation_memory._tensor

    def computed_if_possible(*args):
        tensor = tensor_of(*args)
        return dataclasses.replace(tensor, must=Choice.RECOMPUTE) if tensor.recompute_ns >= 0 \
            else tensor

    monkeypatch.setattr(activation_memory, "_tensor", computed_if_possible)
    torch._dynamo.reset()
    model = made()
    call = call_of(model, activation_memory=0, allow={616})
    (planned,) = explained(call, batch())
    assert {"addmm", "getitem"} <= {tensor.name.split("_")[0]
                                    for tensor in planned.of("recompute")}
    assert_is_eager(model, call)


class Gate(nn.Module):
    """The backward needs what the first layer makes at its beginning and at its end."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        first, second, third, last = self.layers
        made = F.gelu(first(x))
        return last(third(second(made).sin()) * made)


@pytest.mark.parametrize("has_call, is_short", [(False, True), (False, False), (True, True)])
def test_what_is_computed_again_is_not_held_over_the_peak_unless_a_library_computes_it(
        has_call, is_short, monkeypatch):
    tensor_of, graphs = activation_memory._tensor, []
    monkeypatch.setattr(activation_memory, "near_peak",
                        lambda pair, _: pair.backward_steps if is_short else [])
    monkeypatch.setattr(recompute, "_WORTH", 0)  # however long they take on this machine

    def computed(saved, ways, *rest):
        tensor, way = tensor_of(saved, ways, *rest), ways.get(saved)
        is_asked = way is not None and has_call == any(map(recompute.is_apart, way.nodes))
        return dataclasses.replace(
            tensor, must=Choice.RECOMPUTE if is_asked else Choice.KEEP)

    monkeypatch.setattr(activation_memory, "_tensor", computed)
    monkeypatch.setattr(activation_memory, "move", None)
    monkeypatch.setattr(activation_memory, "compute_again", lambda *args: graphs.append(
        recompute.compute_again(*args)) or graphs[-1])
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = Gate()
    call = call_of(model, activation_memory=0, allow={616})
    (planned,) = explained(call, batch())
    assert planned.of("recompute")
    (pair,) = graphs
    made = [node for node in pair.backward.graph.nodes if node.op == "call_function"]
    calls = [node for node in made if "addmm" in str(node.target)]
    assert len(calls) == (3 if has_call else 0)
    if not has_call:  # for the inputs of two products, a product of elements, and gelu's gradient
        assert sum("erf" in str(node.target) for node in made) == (4 if is_short else 2)
    assert_is_eager(model, call)


@pytest.mark.oldest
def test_where_memory_counts_no_kernel_makes_much_before_a_product_that_is_used_behind_it():
    def function(x, weight):
        return x.cos() @ (x.sin() @ weight)

    def kernels():
        torch._dynamo.reset()
        with torch._inductor.config.patch(force_disable_caches=True):
            _, (code,) = run_and_get_code(torch.compile(function), *inputs)
        return re.findall(r"cpp_fused_\w+(?=\()|extern_kernels.mm", code[code.index("def call("):])

    inputs = normal(5, 512, 512), normal(6, 512, 512)
    assert kernels() == ["cpp_fused_cos_sin_0", *["extern_kernels.mm"] * 2]
    with _compat.fused_where_used():
        assert kernels() == ["cpp_fused_sin_0", "extern_kernels.mm",
                             "cpp_fused_cos_1", "extern_kernels.mm"]


@pytest.mark.oldest
def test_tensors_that_the_compiler_lays_out_otherwise_come_back_right():
    torch.manual_seed(1)
    model = Convolutions()
    call = call_of(model, activation_memory=0, allow={616})
    x, y = (normal(5, 2, 3, 8, 8).requires_grad_() for _ in range(2))
    reference = copy.deepcopy(model)
    assert_same(observe(call, model, (x,)), observe(reference, reference, (y,)), Tolerance())


@pytest.fixture(scope="module")
def offloading():
    """A model with a part inside anabranch.offload(), and its call, which nothing else changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved, "LEAST_BYTES", 64)
        model = made(anabranch.offload())
        call = call_of(model)
        (planned,) = explained(call, batch())
    return model, call, planned


def test_what_is_made_inside_offload_is_moved_and_the_rest_stays(offloading):
    _, _, planned = offloading
    assert {tensor.name.split("_")[0] for tensor in planned.of("offload")} >= {"addmm"}
    assert planned.of("keep") and not planned.of("recompute")
    assert all(tensor.out_after < tensor.freed_before and
               planned.forward_steps <= tensor.in_before <= tensor.back_before
               and list(tensor.times_ns) == sorted(tensor.times_ns)
               for tensor in planned.of("offload"))
    assert planned.pinned_bytes >= sum(tensor.bytes for tensor in planned.of("offload"))


@pytest.mark.oldest
def test_moved_tensors_change_no_bit(offloading):
    model, call, _ = offloading
    torch._dynamo.reset()
    plain = made()
    assert_same(observe(call, model, (batch(),)),
                observe(call_of(plain, activation_memory=1.0), plain, (batch(),)))


class LateLanes(copies.Lanes):
    """Copies nothing before somebody waits for it."""

    def __init__(self):
        self.out = self.into = None
        self.late, self.waits = {}, 0

    def empty(self, size, stride, dtype):
        return torch.empty_strided(size, stride, dtype=dtype).fill_(float("nan"))

    def begin(self, stream, to, source):
        self.late[to.data_ptr()] = lambda: to.copy_(source)

    def wait(self, written, instead=None):
        self.late.pop(written)()
        self.waits += 1


def test_compiled_code_uses_no_memory_of_a_copy_before_it_waits_for_it(offloading, monkeypatch):
    model, call, planned = offloading
    wanted, lanes = observe(call, model, (batch(),)), LateLanes()
    monkeypatch.setattr(copies, "is_apart", lambda host, device: True)
    monkeypatch.setattr(copies, "_lanes", {torch.device("cpu"): lanes})
    assert_same(observe(call, model, (batch(),)), wanted)
    assert lanes.late == {} and lanes.waits == 2 * len(planned.of("offload"))


def test_a_copy_that_is_not_done_when_the_forward_ends_is_waited_for_in_the_backward(monkeypatch):
    late, lanes = [], LateLanes()

    def move_late(pair, moves, *rest):
        begun = len(pair.forward_steps)
        late.extend(each._replace(freed_before=begun, in_before=max(each.in_before, begun))
                    for each in moves)
        rewrite.move(pair, late, *rest)

    monkeypatch.setattr(activation_memory, "move", move_late)
    torch._dynamo.reset()
    model = made()
    call = call_of(model, activation_memory=0.4, allow={616})
    wanted = observe(call, model, (batch(),))
    monkeypatch.setattr(copies, "is_apart", lambda host, device: True)
    monkeypatch.setattr(copies, "_lanes", {torch.device("cpu"): lanes})
    answer = call(batch())
    assert len(lanes.late) == len(late) > 0
    answer.sum().backward()
    assert lanes.late == {}
    model.zero_grad()
    assert_same(observe(call, model, (batch(),)), wanted)


@pytest.mark.oldest
def test_forwards_before_their_backwards_have_memory_of_their_own(offloading):
    model, call, _ = offloading
    xs, alone = [batch(seed) for seed in range(3)], [batch(seed) for seed in range(3)]
    for out in [call(x).sum() for x in xs]:
        out.backward()
    for x in alone:
        call(x).sum().backward()
    assert all(torch.equal(x.grad, other.grad) for x, other in zip(xs, alone, strict=True))


@pytest.mark.oldest
def test_a_second_backward_finds_what_the_first_found(offloading):
    _, call, _ = offloading
    x = batch()
    out = call(x).sum()
    first, = torch.autograd.grad(out, x, retain_graph=True)
    call(batch(7)).sum().backward()  # memory that was free would be taken
    second, = torch.autograd.grad(out, x)
    assert torch.equal(first, second)


@pytest.mark.oldest
def test_double_backward_is_refused_as_without_it(offloading):
    _, call, _ = offloading
    x = batch()
    grad, = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


@pytest.mark.oldest
def test_hooks_on_saved_tensors_see_the_block_and_may_move_it_once_more(offloading):
    _, call, planned = offloading
    alone, x = batch(), batch()
    call(alone).sum().backward()
    with torch.autograd.graph.save_on_cpu():
        out = call(x).sum()
    out.backward()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        call(batch())
    assert torch.equal(x.grad, alone.grad)
    assert [t.numel() for t in packed if t.dtype == torch.uint8] == [planned.pinned_bytes]


@pytest.mark.oldest
def test_what_is_saved_and_then_changed_by_the_caller_is_told_by_autograd(offloading):
    """An input is saved as it is, and never moved."""
    model, call, _ = offloading
    x = batch()
    out = call(x).sum()
    with torch.no_grad():
        next(model.block.up.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    with torch.no_grad():
        next(model.block.up.parameters()).sub_(1)


def test_a_budget_that_cannot_be_met_is_told_with_the_least_possible(caplog):
    x = batch()
    call_of(made(), activation_memory=0)(x)
    (line,) = [r.getMessage() for r in caplog.records if "[E0616]" in r.getMessage()]
    page = (Path(__file__).parents[3] / "docs/errors.md").read_text()
    sample = re.search(r"^## E0616 .*?^```text\n(.*?)\n^```", page, re.MULTILINE | re.DOTALL)[1]
    assert re.sub(r"\d+", "N", line) == re.sub(r"\d+", "N", sample)  # torch's cuts differ
    torch._dynamo.reset()
    with pytest.raises(Exception, match="strict=True forbids to miss it") as caught:
        call_of(made(), activation_memory=0, strict=True)(x)
    error = caught.value
    while not isinstance(error, errors.CompileError):
        error = error.__cause__ or error.inner_exception
    assert error.code == 616


def test_without_a_wish_nothing_is_planned():
    assert explained(call_of(made()), batch()) == [None]


def test_tensors_whose_sizes_change_stay_and_are_named():
    model = made()
    call = torch.compile(model, backend="anabranch", dynamic=True,
                         options={"activation_memory": 0.5, "allow": {616}})
    (planned,) = explained(call, batch())
    assert {tensor.choice for tensor in planned.tensors} == {"keep"}
    assert "its size changes between calls" in {tensor.why for tensor in planned.tensors}
    for tokens in (TOKENS + 3, TOKENS + 8):
        x, y = (normal(5, 2, tokens, WIDTH).requires_grad_() for _ in range(2))
        assert_same(observe(call, None, (x,)), observe(model, None, (y,)), Tolerance())


def test_a_fault_leaves_the_graphs_as_torch_cut_them(monkeypatch, caplog):
    def fail(*given):
        recompute.take_from_results(given[0].forward.graph, set(given[0].saved[0].answers))
        raise KeyError("a node")

    monkeypatch.setattr(activation_memory, "move", fail)
    model = made(anabranch.offload())
    call = call_of(model)
    assert explained(call, batch()) == [None]
    assert "what is saved cannot be planned" in caplog.text
    plain = made()
    assert_same(observe(call, model, (batch(),)), observe(plain, plain, (batch(),)), Tolerance())


def test_an_explanation_tells_what_became_of_each_tensor(offloading):
    _, call, planned = offloading
    told = anabranch.explain(lambda: call(batch()))
    assert "saved tensors: " in str(told) and "out after step" in str(told)
    kept = json.loads(json.dumps(told.to_dict()))["graphs"][0]["activations"]
    assert kept["pinned_bytes"] == planned.pinned_bytes
    assert len(kept["tensors"]) == len(planned.tensors)


@pytest.mark.skipif(not hasattr(torch.utils.checkpoint.CheckpointPolicy, "MUST_CPU_OFFLOAD"),
                    reason="this torch has no policy for the CPU")
def test_a_policy_for_the_cpu_moves_what_it_names():
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_CPU_OFFLOAD if op in named \
            else CheckpointPolicy.PREFER_RECOMPUTE

    named = (torch.ops.aten.addmm.default,
             torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)

    class Checkpointed(Model):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False, context_fn=context)

    context = functools.partial(create_selective_checkpoint_contexts, policy)
    torch.manual_seed(1)
    model = Checkpointed()
    call = call_of(model)
    (planned,) = explained(call, batch())
    moved = {tensor.name.split("_")[0] for tensor in planned.of("offload")}
    assert moved == {"addmm", "getitem"}, list(planned.lines())
    plain = made()
    assert_same(observe(call, model, (batch(),)), observe(plain, plain, (batch(),)), Tolerance())


def test_a_graph_of_several_streams_keeps_all_and_says_so(caplog):
    def run(**options):
        call = torch.compile(Mlp(streams=True), backend="anabranch",
                             options={"activation_memory": 0.1, **options})
        call(torch.ones(4, 8)).sum().backward()

    run()
    assert "several streams keeps all that it saves [E0616]" in caplog.text
    with pytest.raises(Exception, match="strict=True forbids to miss it"):
        run(strict=True)
    run(strict=True, allow={616})
