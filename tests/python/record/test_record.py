# SPDX-License-Identifier: Apache-2.0
"""What of recording needs no GPU: what a step's state is, which memory moves as one, plain runs."""

from __future__ import annotations

import collections
import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_unflatten

import anabranch
from anabranch import _compat, config
from anabranch._compat import modes as _modes
from anabranch._compile import backend
from anabranch._compile import report as report_module
from anabranch._compile.cuts import Cuts
from anabranch._compile.kept_graphs import GraphFacts
from anabranch._core.abi import CaptureCounts
from anabranch._record import recorded_callable
from anabranch._record.capture.step import Fresh
from anabranch._record.launch.output_buffers import OutputBuffers
from anabranch._record.launch.saved_blocks import SavedBlocks
from anabranch._record.record import record
from anabranch._record.recorded_callable import RecordedCallable
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state import state as state_module
from anabranch._record.state.state import State
from anabranch._record.tensors import units_apart, units_of, units_overlap


def places(*roots):
    state = State(roots)
    return state, {id(place.get()) for place in (*state.places, *state.on_cpu)}


def test_without_a_gpu_a_recorded_callable_runs_as_it_is_and_says_so(monkeypatch):
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: False)
    step = record(lambda x, scale=2: x * scale)
    x = torch.randn(4)
    assert torch.equal(step(x, scale=3), x * 3)
    assert [report.reason for report in step.reports] == [recorded_callable._NO_GPU.text]


def test_record_is_also_a_decorator_and_keeps_the_name():
    @record(verify=False)
    def step(x):
        """Adds one."""
        return x + 1

    assert step.__name__ == "step" and step.__doc__ == "Adds one."
    assert torch.equal(step(torch.ones(2)), torch.full((2,), 2.0))


def test_a_method_may_be_recorded_and_has_its_object():
    """Its recordings are the class's: what an object's says is what any other's does."""
    class Scale:
        def __init__(self, by):
            self.by = by

        @record
        def scaled(self, x, plus=0):
            return x * self.by + plus

    assert torch.equal(Scale(3).scaled(torch.ones(2), plus=1), torch.full((2,), 4.0))
    assert Scale.scaled is Scale.__dict__["scaled"]
    assert str(Scale(2).scaled.reports) == str(Scale.scaled.reports)


def test_modules_and_optimizers_of_a_closure_are_found_with_all_their_tensors():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    state, found = places(step)
    assert {id(tensor) for tensor in (*model.parameters(), *model.buffers())} <= found
    assert state.optimizers == [optimizer] and len(state.modules) == 3


def test_state_is_found_through_partials_methods_and_containers():
    class Trainer:
        def __init__(self):
            self.parts = {"models": [nn.Linear(2, 2)]}

        def step(self, extra, x):
            return self.parts["models"][0](x) + extra

    trainer, extra = Trainer(), torch.ones(2)
    _, found = places(functools.partial(trainer.step, extra))
    weights = {id(parameter) for parameter in trainer.parts["models"][0].parameters()}
    assert weights | {id(extra)} <= found


def test_what_static_names_is_found_too():
    hidden = torch.ones(3)
    _, found = places(lambda x: x, hidden)
    assert id(hidden) in found


def test_guards_change_with_what_python_says_and_not_with_what_kernels_read():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    state = State([lambda: (model, optimizer)])
    state.on_cpu.clear()  # these would be on the GPU
    before = state.guards()
    optimizer.param_groups[0]["lr"].fill_(0.2)
    assert state.guards() == before
    model.eval()
    assert state.guards() != before
    model.train()
    assert state.guards() == before
    optimizer.param_groups[0]["momentum"] = 0.9
    assert state.guards() != before


def test_hooks_that_come_and_go_are_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model[0].register_forward_hook(lambda *args: None)
    state = State([lambda: (model, optimizer)])
    state.on_cpu.clear()
    state.parameters = lambda: state._parameters  # they say that they are on the CPU
    state._parameters = list(model.parameters())
    known = [before := state.guards()]

    def nothing(*args):
        pass

    for register in (model[1].register_forward_pre_hook, model[0].register_full_backward_hook,
                     model[0].weight.register_hook, optimizer.register_step_pre_hook,
                     model[0].weight.register_post_accumulate_grad_hook):
        handle = register(nothing)
        assert state.guards() not in known
        known.append(state.guards())
        handle.remove()
        assert state.guards() == before
    first.remove()
    assert state.guards() not in known
    known.append(state.guards())
    model[0].register_forward_hook(nothing)  # another one in its place
    assert state.guards() not in known
    nn.Linear(2, 2).register_forward_hook(nothing)
    known = state.guards()
    nn.Linear(2, 2).register_forward_hook(nothing)  # of somebody else
    assert state.guards() == known


cuda, cudnn = torch.backends.cuda, torch.backends.cudnn


def attribute(owner, name):
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


# How each is asked for and set, and another value.
SETTINGS = {
    "default type": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp, False),
    "memory-efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, False),
    "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp, False),
    "cuDNN's attention": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, False),
    "cuDNN": (*attribute(cudnn, "enabled"), False),
    "cuDNN deterministic": (*attribute(cudnn, "deterministic"), True),
    "deterministic": (torch.are_deterministic_algorithms_enabled,
                      torch.use_deterministic_algorithms, True),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    "fp16 reductions": (*attribute(cuda.matmul, "allow_fp16_reduced_precision_reduction"), False),
    "bf16 reductions": (*attribute(cuda.matmul, "allow_bf16_reduced_precision_reduction"), False),
    "fp16 sums": (*attribute(cuda.matmul, "allow_fp16_accumulation"), True),
}


@pytest.mark.parametrize("get, put, other", SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_of_torch_tell_signatures_apart(get, put, other):
    modes, before = _modes(), get()
    put(other)
    try:
        assert _modes() != modes
    finally:
        put(before)


def test_what_is_in_pinned_memory_may_change_and_where_it_lies_may_not(monkeypatch):
    monkeypatch.setattr(state_module, "is_pinned", lambda tensor: tensor is not frozen)
    frozen, pinned, written = torch.ones(2), torch.ones(2), torch.ones(2)

    def step():
        return frozen, pinned, written

    first = State([step])
    before = first.guards()
    written.add_(1)
    assert first.guards() == before and not first.written
    assert [tensor is written for tensor in State([step], (), first).written] == [True]
    assert not State([step]).written  # nobody knows since when
    pinned.data = torch.zeros(2)
    assert first.guards() != before
    before = first.guards()
    written = torch.ones(2)
    assert first.guards() != before
    before = first.guards()
    frozen.add_(1)
    assert first.guards() != before


def test_tensors_that_share_bytes_are_one_unit_and_neighbours_are_not():
    x = torch.arange(10.0)
    units = units_of([x[2:5], x[4:8], x[8:], x[:0], x[2:8:5]])
    assert [unit.size_bytes for unit in units] == [24, 8]
    assert units[0].address == x[2:].data_ptr()
    assert sorted(units[0].members) == [(0, 0), (1, 8), (4, 0)]
    assert units[1].members == [(2, 0)]


def test_an_argument_and_the_state_may_share_bytes_in_units_of_their_own():
    x = torch.arange(10.0)
    tensors = [x[:4], x[6:], x[2:4], x[:0], x[4:6], x[3:8]]
    units = units_apart(tensors, 2)
    assert [(unit.members, unit.size_bytes) for unit in units] == [
        ([(0, 0)], 16), ([(1, 0)], 16), ([(2, 0), (5, 4), (4, 8)], 24)]
    assert units_overlap(units) and units_overlap([units[2], units[0]])
    assert not units_overlap(units[:2]) and not units_overlap(units_of(tensors))
    assert not units_overlap([])


def test_containers_of_arguments_are_told_apart_and_come_back_as_they_were():
    call = record(lambda *args, **kwargs: None)
    assert isinstance(call, RecordedCallable)
    x, pair = torch.ones(1), collections.namedtuple("Pair", "a b")
    heads = []
    for args, kwargs in [((x, 2), {}), (([x, 2],), {}), (((x, 2),), {}), (({"a": x, "b": 2},), {}),
                         (({"b": x, "a": 2},), {}), ((x,), {"k": [2, {"c": None}]}),
                         ((x, [], {}), {"k": 2}), ((pair(x, 2),), {}), (([pair(x, (2,))],), {})]:
        for _ in range(2):  # new, and known
            head, *leaves = call._flat(args, kwargs)
            back = tree_unflatten(leaves, call._trees[head])
            assert repr(back) == repr((args, kwargs)) and leaves[0] is x
        heads.append(head)
    assert len(set(heads)) == len(heads)


def test_tensors_that_are_freed_together_share_blocks_and_no_byte(monkeypatch):
    monkeypatch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
    monkeypatch.setattr(_compat, "byte_allocator", lambda: (0, 0))
    shapes = [(7, 200_001), (3, 5), (1000, 1), (0, 4), (2, 2)]
    answers = [Fresh(i, 0, shape, (shape[1], 1), (torch.bfloat16, torch.bool)[i % 3 == 1])
               for i, shape in enumerate(shapes * 20)]
    answers.append(Fresh(0, 2, (5, 2), (1, 5), torch.bfloat16))  # another view of the first
    answers.append(Fresh(1, 5, (5, 2), (1, 5), torch.int8))
    sizes = [size[0] * size[1] * answer.dtype.itemsize
             for size, answer in zip(shapes * 20, answers, strict=False)]
    buffers = OutputBuffers(answers, sizes, set(range(5, 95)))
    bases = buffers.allocate()
    fresh = buffers.tensors(bases)
    for i, tensor in enumerate(fresh):
        base, offset = buffers.place(i)
        assert tensor.data_ptr() in (0, bases[base].data_ptr() + offset)
        assert i >= buffers.alone or tensor is bases[base]
    for allocation, answer in enumerate(answers[:-2]):
        tensor = fresh[buffers.of[allocation]]
        is_flat = allocation in (0, 1)  # seen in two ways: of one type, and of two
        assert (tensor.dtype, tuple(tensor.shape)) == (
            ((torch.bfloat16, (1_400_007,)), (torch.uint8, (15,)))[allocation] if is_flat
            else (answer.dtype, answer.shape))
        own = tensor.untyped_storage().nbytes() == sizes[allocation]
        assert own or (5 <= allocation < 95 and 0 < sizes[allocation] <= 2 << 20)
        assert own or tensor.storage_offset() * tensor.element_size() % 512 == 0
    assert sum(unit.size_bytes for unit in units_of(fresh)) == sum(sizes)
    blocks = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
              for tensor in fresh if tensor.numel()}
    assert 20 < len(blocks) < 40 and max(blocks.values()) <= 10 << 20


def test_explain_shows_recorded_callables_that_ran_and_what_became_of_them():
    def step(x):
        return x + 1

    steps = [record(step), record(torch.relu), record(torch.tanh)]
    launched, plain, idle = specs = [Specialization("(float32[4])", State()) for _ in steps]
    for recorded, spec in zip(steps, specs, strict=True):
        recorded._recorder.specializations[spec.report.inputs] = spec
    launched.recording = SimpleNamespace(timing=None, counts=CaptureCounts(
        nodes=3, launched_from_host=7, arena_bytes=512, held_device_bytes=640, held_host_bytes=96))
    plain.note(reason="it looks at a value")

    def call():  # as a call on a GPU would
        launched.other_calls += 1
        plain.other_calls += 1

    explanation = anabranch.explain(call)
    assert set(explanation.callables) == set(steps[:2]) and idle.calls == 0
    text = str(explanation)
    assert f"callable: {step.__qualname__}\n  (float32[4]): 1 calls: 0 unchanged, 7 set" in text
    assert "holds 640 bytes on the device, 96 pinned, and 0 of the driver's" in text
    assert launched.current_report().memory == (512, 640, 96, 0)
    assert "unrecorded: it looks at a value" in text and "tanh" not in text


def test_a_graph_without_operators_is_neither_recorded_nor_watched():
    """As the backward of a sum: its gradients are those it is given."""
    call = torch.compile(lambda x: x + 1, backend=anabranch.backend)
    x = torch.ones(3, requires_grad=True)
    call(x).sum().backward()
    assert [graph.kind for graph in anabranch.explain(call, x).graphs] == ["forward"]
    facts = GraphFacts("backward", 0, [], True, False, 1, Cuts(), None, [])
    assert backend._record(config.resolve({}), facts, lambda given: given,
                           SavedBlocks()).text == "it has no operators"


def test_explain_of_nothing_says_so():
    assert "no graph" in str(anabranch.explain(lambda: None))


def test_explain_that_fails_does_not_keep_the_next_one_from_running(monkeypatch):
    call = torch.compile(torch.tanh, backend="anabranch")
    call(torch.ones(3))

    def fails(collector, report):
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(report_module, "_watch", fails)
        with pytest.raises(ValueError, match="no"):
            anabranch.explain(call, torch.ones(3))
    assert "inference" in str(anabranch.explain(call, torch.ones(3)))
