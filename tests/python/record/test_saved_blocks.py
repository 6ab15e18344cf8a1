# SPDX-License-Identifier: Apache-2.0
"""What a recorded forward saves goes to its backward in blocks, and nobody can tell. Graphs are run
by AOTAutograd on the CPU; in the place of a launch is what copies the saved tensors into blocks."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd

from anabranch import _compat
from anabranch._record import launches, recorder
from anabranch._record.launch.output_buffers import part_of
from anabranch._record.launch.saved_blocks import (
    BlockLayout,
    BlockPlace,
    InBlocks,
    SavedBlocks,
    opened,
)
from anabranch._record.memory import shortage
from anabranch._record.memory.shortage import Short
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.state import NO_STATE
from anabranch.config import Options

pytestmark = pytest.mark.oldest

ALIGNMENT = 64


def layout_of(results, first):
    """Of results from the first that is saved on, floats in one block and others in another; every
    fifth stays a tensor of its own. Views, which no launch answers, would be saved as other
    objects."""
    ends, places = {0: 0, 1: 0}, {}
    for i, tensor in enumerate(results):
        if i < first or i % 5 == 4 or tensor._is_view():
            continue
        base = int(tensor.dtype != torch.float32)
        places[i] = BlockPlace(base, ends[base], tuple(tensor.shape), tuple(tensor.stride()),
                               tensor.dtype)
        ends[base] += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return BlockLayout(places), [ends[0], ends[1]]


class Graphs:
    """A compiler whose forwards answer blocks where they may; ``given`` is what backwards got."""

    def __init__(self):
        self.passes = SavedBlocks()
        self.given, self.blocks, self.layout, self.first = [], [], None, None
        self.compile = aot_autograd(fw_compiler=self.forward, bw_compiler=self.backward,
                                    inference_compiler=lambda gm, inputs: gm)

    def forward(self, gm, inputs):
        self.first = _compat.results_of_forward()
        _compat.keep_saved_tensors()

        def call(args):
            results = list(gm(*args))
            args.clear()
            if self.layout is None:
                self.layout, self.sizes = layout_of(results, self.first)
            if not self.passes.may_pass(self.layout):
                self.passes.watch(self.layout, results)
                return results
            # Of floats, as the output buffers of a launch are, and seen as other types.
            bases = [torch.full((size // 4,), torch.nan) for size in self.sizes]
            for i, place in self.layout.places.items():
                opened_at(bases, place).copy_(results[i])
                results[i] = bases[place.base]
            self.layout.sign(bases)
            self.blocks += map(weakref.ref, bases)
            return results

        call._boxed_call = True
        return call

    def backward(self, gm, inputs):
        def call(args):
            leaves = self.passes.of_backward(args)
            tensors = list(opened(leaves))
            args.clear()
            self.given.append(type(leaves))
            return gm(*tensors)

        call._boxed_call = True
        return call


def opened_at(bases, place):
    return part_of(bases[place.base], *place[1:])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)).sort(dim=1).values
        return x


@pytest.fixture
def trained(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    graphs, model = Graphs(), Model()
    call = torch.compile(model, backend=graphs.compile)

    def gradients(function, x):
        for parameter in model.parameters():
            parameter.grad = None
        function(x).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    def step(seed, function=call):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        found, wanted = gradients(function, x), gradients(model, x)
        assert all(map(torch.equal, found, wanted))

    return SimpleNamespace(graphs=graphs, model=model, call=call, step=step)


def test_from_the_second_backward_on_it_is_given_blocks_and_they_are_let_go(trained):
    for seed in range(4):
        trained.step(seed)
    assert trained.graphs.given == [list, InBlocks, InBlocks, InBlocks]
    places = trained.graphs.layout.places.values()
    assert len(places) > 8 and {place.base for place in places} == {0, 1}
    gc.collect()
    assert len(trained.graphs.blocks) == 6
    assert not any(block() is not None for block in trained.graphs.blocks)


def test_two_forwards_before_their_backwards_have_blocks_of_their_own(trained):
    model, call, x = trained.model, trained.call, torch.randn(3, 8)
    for _ in range(3):  # at first, what is watched is another call's
        found = [call(x + i) for i in range(3)]
        for i in (0, 2, 1):
            grads = torch.autograd.grad(found[i].square().sum(), list(model.parameters()))
            wanted = torch.autograd.grad(model(x + i).square().sum(), list(model.parameters()))
            assert all(map(torch.equal, grads, wanted))
    assert trained.graphs.given[0] is list and trained.graphs.given[-1] is InBlocks


def test_a_backward_may_run_twice_over_the_same_blocks(trained):
    trained.step(0)
    loss = trained.call(torch.randn(3, 8)).square().sum()
    first = torch.autograd.grad(loss, list(trained.model.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(trained.model.parameters()))
    assert all(map(torch.equal, first, again))
    assert trained.graphs.given == [list, InBlocks, InBlocks]


def test_hooks_on_saved_tensors_see_tensors_and_so_does_checkpointing(trained):
    def hooked(x):
        with torch.autograd.graph.save_on_cpu():
            return trained.call(x)

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(trained.call, x.requires_grad_(),
                                                 use_reentrant=False)

    shapes = []

    def seen(x):
        def pack(tensor):
            shapes.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return trained.call(x)

    for seed, function in enumerate((trained.call, trained.call, hooked, checkpointed, seen)):
        trained.step(seed, function)
    assert trained.graphs.given == [list, InBlocks, list, list, list]
    assert not {place.shape for place in trained.graphs.layout.places.values()} - {*shapes}
    assert trained.graphs.sizes[0] // 4 not in {shape.numel() for shape in shapes}


def test_compiled_autograd_sees_tensors(trained):
    trained.step(0)
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert not trained.graphs.passes.may_pass(trained.graphs.layout)
    assert trained.graphs.passes.may_pass(trained.graphs.layout)


def test_a_backward_beside_another_that_has_just_found_the_tensors_goes_on():
    """Between two looks of one thread the other may have taken away what was watched."""
    class Found(SavedBlocks):
        looks = 0

        @property
        def _watched(self):
            self.looks += 1
            return (self.layout, self.results) if self.looks == 1 else None

        @_watched.setter
        def _watched(self, watched):
            pass

    passes, tensor = Found(), torch.ones(2)
    passes.layout = BlockLayout({0: BlockPlace(0, 0, (2,), (1,), torch.float32)})
    passes.results = [(0, weakref.ref(tensor))]
    assert passes.of_backward([tensor]) == [tensor] and passes.may_pass(passes.layout)


def test_tensors_that_went_another_way_are_not_taken_for_those_of_the_forward():
    passes, layout = SavedBlocks(), BlockLayout({0: BlockPlace(0, 0, (2,), (1,), torch.float32),
                                                 2: BlockPlace(0, 64, (2,), (1,), torch.float32)})
    results = [torch.ones(2), None, torch.ones(2)]
    for inputs in ([results[0], None], [results[0], results[2].clone()], [None, None]):
        passes.watch(layout, results)
        assert passes.of_backward(inputs) is inputs and not passes.may_pass(layout)
    passes.watch(layout, [torch.ones(2), None, torch.ones(2)])  # gone by then
    assert passes.of_backward([None, None]) == [None, None] and not passes.may_pass(layout)
    passes.watch(layout, results)
    inputs = [3, results[2], torch.ones(5), results[0]]
    assert passes.of_backward(inputs) is inputs and passes.may_pass(layout)
    block = torch.arange(32.)
    layout.sign([block])
    given = passes.of_backward([3, block, torch.ones(5), block])
    assert isinstance(given, InBlocks) and given.places.of.keys() == {1, 3}
    number, second, own, first = opened(given)
    assert number == 3 and second.tolist() == [16, 17] and first.tolist() == [0, 1]
    assert own.shape == (5,)
    assert not passes.may_pass(BlockLayout(layout.places))  # of another recording


def test_while_a_backward_is_plain_for_want_of_memory_its_forward_is_too(monkeypatch):
    """What a launched forward saves lies otherwise than a plain one's, and may not fit."""
    free = 1 << 30
    monkeypatch.setattr(launches, "free_bytes", lambda device: free)
    monkeypatch.setattr(shortage, "free_bytes", lambda device: free)
    monkeypatch.setattr(launches, "empty_cache", lambda: None)
    monkeypatch.setattr(recorder, "tell", lambda head, why, **how: None)
    pair, is_full = SavedBlocks(), False

    def launch(self, key, spec, leaves, state):
        short = Short("a launch", 2 << 30, free)
        return self._launches._launch_later(spec, short, 0, leaves) if is_full else "launched"

    monkeypatch.setattr(recorder.Recorder, "_launch", launch)

    def made(is_backward):
        one = recorder.Recorder(lambda leaves: "plain", Options(), "a graph", kind=CallableKind(is_backward=is_backward, pair=pair))
        one.specializations["key"] = Specialization("", NO_STATE)
        one.specializations["key"].recording = object()
        one.specializations["other"] = Specialization("", NO_STATE)
        one.specializations["other"].recording = object()
        return lambda key="key": one.run(key, [], NO_STATE, str)

    forward, backward = made(False), made(True)
    assert forward() == backward() == "launched"
    is_full = True
    assert backward() == "plain"
    is_full = False
    assert forward() == backward() == "plain"
    free = 4 << 30
    assert forward() == "plain"  # until the backward has found that it has memory
    assert backward() == forward() == "launched"
    is_full, free = True, 1 << 30
    assert backward() == "plain"
    is_full = False
    assert backward("other") == forward() == "launched"  # of another signature, which has memory
