# SPDX-License-Identifier: Apache-2.0
"""Tensors that a step uses and that are not found from it by themselves: where they are looked for,
once a capture has named one, and what else is found then."""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._record.capture import untracked
from anabranch._record.state import paths
from anabranch._record.state.cache import StateCache
from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True), raising=False)


def test_where_torchs_generator_keeps_its_seed_for_graphs_is_no_tensor_of_the_step(monkeypatch):
    """Python has it where a graph of torch's own came first: all that one draw names. What else a
    capture names is looked for, and where nothing is left nobody looks."""
    seed, offset, other = (torch.zeros(1, dtype=torch.int64) for _ in range(3))
    memory = [(tensor.data_ptr(), 8) for tensor in (seed, offset, other)]

    class Snapshot:
        def __init__(self, device, graph):
            self.named = {begin for begin, _ in memory[:2]}

        def mentions(self, ranges, other=None):
            assert list(ranges) == sorted(ranges)
            return [(i, "kernel 0") for i, (begin, _) in enumerate(ranges) if begin in self.named]

    graph = SimpleNamespace(raw_cuda_graph=lambda: 0, capture_end=lambda: None,
                            capture_begin=lambda capture_error_mode: None)
    monkeypatch.setattr(untracked, "CaptureSnapshot", Snapshot)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch, "empty", lambda size, device: torch.zeros(size))
    monkeypatch.setattr(untracked, "named_of", lambda tensors, step, device: tensors)
    step = SimpleNamespace(stream=None, device=0, fixed=[], tensors=[])
    captured = SimpleNamespace(snapshot=Snapshot(None, 0))
    capture = SimpleNamespace(alive=memory, captures=[captured, captured])
    looks = []
    monkeypatch.setattr(_compat, "tensors_alive", lambda: looks.append(1) or [seed, offset, other])
    untracked.check_all_tracked(step, capture, None, ())
    assert not looks
    captured.snapshot.named = {begin for begin, _ in memory}  # and Snapshot's draw two of them
    with pytest.raises(untracked.UntrackedTensors) as refused:
        untracked.check_all_tracked(step, capture, None, ())
    assert refused.value.tensors == [other]
    untracked.check_all_tracked(step, capture, None, [other])


def ids(tensors):
    return {id(tensor) for tensor in tensors}


def found(state):
    return ids(state.tensors())


def farther(step, *tensors, arguments=(), beside=()):
    """The states of a step, told to look for these tensors, which they had not found; they do, and
    find nothing else but ``beside``."""
    before = State([step], arguments)
    assert not found(before) & ids(tensors)
    ways = before.ways_to(tensors)
    assert ways
    states = StateCache([step], 4)
    states.look_farther(ways)
    state = states.find(arguments)
    assert found(state) == found(before) | ids(tensors) | ids(beside)
    assert state.ways_to(tensors) is None  # it has looked there
    assert state.is_current()
    return states


class Rotary:
    """A helper of a module, with a cache of its own and more that the step has nothing to do
    with."""

    table = torch.ones(3)

    def __init__(self):
        self.cache = {"cos": torch.ones(4), "sin": torch.ones(4)}
        self.unused = torch.ones(5)


class Attention(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.rotary = Rotary()
        self.trainer = SimpleNamespace(data=[torch.ones(6)])

    def forward(self, x):
        return super().forward(x) * self.rotary.cache["cos"]


def test_tensors_that_are_alive_are_found_by_their_type_whatever_else_lives():
    class Kind(type):
        __hash__ = None

        def __eq__(cls, other):
            raise AssertionError("asked whom it is like")

    class Named(Tensor):
        pass

    class Dispatching(Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    class OfDispatching(Dispatching):
        pass

    found = [torch.zeros(1), nn.Parameter(torch.zeros(1)), torch.zeros(1).as_subclass(Named)]
    others = [Tensor._make_subclass(Dispatching, torch.zeros(1)),
              Tensor._make_subclass(OfDispatching, torch.zeros(1)), torch.zeros(1).to_sparse()]
    for strange in ((), [Kind("Strange", (), {})()]):
        alive = set(map(id, _compat.tensors_alive()))
        assert alive.issuperset(map(id, found)) and alive.isdisjoint(map(id, others)), strange


def test_objects_of_modules():
    model = nn.Sequential(Attention(), Attention())

    def step(x):
        return model(x)

    helpers = [layer.rotary for layer in model]
    # What is in these is found, as in any object, and nothing in other ones.
    states = farther(step, *(helper.cache["cos"] for helper in helpers), beside=[
        tensor for helper in helpers for tensor in (helper.cache["sin"], helper.unused)])
    assert states.current(()) is not None
    model[1].rotary.cache["sin"] = torch.zeros(4)  # which it does not use
    assert states.current(()) is not None
    model[1].rotary = Rotary()
    assert states.current(()) is None
    assert id(model[1].rotary.cache["cos"]) in found(states.find(()))


def test_attributes_of_classes():
    """Of an object's, of a base, and of a class that the step names."""
    class Base:
        shift = torch.ones(2)

    class Named(Base):
        scale = torch.ones(2)

    class Layer(nn.Linear):
        table = torch.ones(2)

    model, thing = nn.Sequential(Layer(2, 2)), Named()

    def step(x):
        return model[0].table * thing.shift + Named.scale + x

    states = farther(step, Layer.table, Base.shift, Named.scale)
    before, Base.shift = Base.shift, torch.zeros(2)
    now = states.current(())
    assert now is not None  # tensors are looked up where they stand
    assert id(Base.shift) in found(now) and id(before) not in found(now)


def test_variables_of_modules_and_of_functions_in_them():
    module = types.ModuleType("somebodys_operators")
    exec("def scaled(x):\n    return x * SCALE\n", vars(module))
    module.SCALE, module.SHIFT, module.unused = torch.ones(2), torch.ones(2), torch.ones(3)

    def step(x):
        return module.scaled(x) + module.SHIFT

    states = farther(step, module.SCALE, module.SHIFT)
    state = states.find(())
    module.SCALE = torch.zeros(2)
    assert id(module.SCALE) in found(state)


def test_functions_of_a_class():
    def step(x):
        return Reader().scaled(x)

    farther(step, _SCALE)


_SCALE = torch.ones(7)


class Reader:
    def scaled(self, x):
        return x * _SCALE


@pytest.mark.parametrize("size", [None, 8])
def test_what_functools_keeps(size):
    @functools.lru_cache(size)
    def table(n):
        return torch.ones(n), {"shift": torch.ones(n)}

    def step(x):
        scale, more = table(2)
        return x * scale + more["shift"]

    table(3)
    scale, more = table(2)
    states = farther(step, scale, more["shift"])
    table(4)
    assert found(states.find(())) == ids([scale, more["shift"]])
    table.cache_clear()
    assert not found(states.find(()))
    assert states.find(()).ways_to([table(2)[0]])


def test_what_has_come_to_a_known_place_since_is_found_the_next_time():
    """What a cache keeps is named by an id, which another thing may have later."""
    holder = SimpleNamespace(inner=SimpleNamespace(table=None))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.helper = holder

    net = Net()

    def step(x):
        return net(x)

    states = StateCache((step,), 16)
    holder.inner.table = torch.ones(2)
    states.look_farther(states.find(()).ways_to([holder.inner.table]))
    holder.inner.table = None
    before = states.find(())
    holder.inner.table = torch.ones(2)
    assert before.ways_to([holder.inner.table])
    assert states.find(()).ways_to([holder.inner.table]) is None  # it is known


def test_arguments():
    layer = Attention()

    def step(layer, x):
        return layer(x)

    helper = layer.rotary
    states = farther(step, helper.cache["cos"], arguments=[layer],
                     beside=[helper.cache["sin"], helper.unused])
    assert states.current([layer]) is not None


def test_what_nothing_leads_to_is_not_found():
    holder = SimpleNamespace()  # that no step names
    holder.thing = Rotary()
    seen = weakref.ref(holder.thing)

    def step(x):
        return x * seen().unused

    assert State([step]).ways_to([holder.thing.unused]) is None
    assert State([step]).ways_to([]) is None


def test_memory_that_launches_check_is_left_to_them():
    """A library has views of what is inside a tensor of a wrapping class, that nobody finds."""
    held, other = torch.ones(8), torch.ones(8)
    view, mine = held.view(2, 4), other[2:]
    memory = sorted((tensor.data_ptr(), 32) for tensor in (held, other))
    everything = {id(one) for one in untracked._tensors_in(memory, but=[other])}
    assert {id(view), id(mine), id(held)} <= everything and id(other) not in everything
    left = untracked._without(memory, [held[4:]])
    assert left == [(other.data_ptr(), 32)]
    assert id(view) not in {id(one) for one in untracked._tensors_in(left, but=())}
    assert untracked._without(memory, []) == memory
    behind = [(begin - 32, 32) for begin, _ in memory]
    assert untracked._without(behind, [held, other]) == behind


def test_programs_without_end_are_searched_for_a_while(monkeypatch):
    monkeypatch.setattr(paths.Everywhere, "__init__",
                        functools.partialmethod(paths.Everywhere.__init__, most=10))
    model = nn.Sequential(*(Attention() for _ in range(20)))
    state = State([lambda x: model(x)])
    assert state.ways_to([model[0].rotary.unused])
    assert state.ways_to([model[-1].rotary.unused]) is None
