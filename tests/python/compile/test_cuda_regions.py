# SPDX-License-Identifier: Apache-2.0
"""Graphs of several streams on a GPU's streams, on a stand-in for the GPU: whatever its streams do
first, results are eager's, also if everything that was let go is overwritten at once.

Regions run as torch's own operators instead of Inductor's code, late.
"""

from __future__ import annotations

import functools

import pytest
import torch
from compare import compiled
from random_streams import Writer, function_of, inputs, seed_parts
from stand_in_gpu import Event, Gpu, Raw
from test_threads import together
from zoo import Towers, normal

import anabranch
from anabranch import _compat
from anabranch._compile import backend
from anabranch._compile.cuda_streams.instance import CudaInstance

pytestmark = pytest.mark.own

SEEDS, SEEDS_AT_A_TIME = 60, 20
WEAK_SEEDS = 20
CALLS = 4
SIZES_BYTES = (32, 128)  # of tensors of a random program


class LateGpu(Gpu):
    """Regions are late on it."""

    def __init__(self):
        super().__init__()
        self.instances = []
        self.weaken = lambda instance: None

    def make(self, graph, regions, args, options):
        self.instances.append(CudaInstance(graph, regions, self, args))
        self.weaken(self.instances[-1])
        return self.instances[-1]

    def compile(self, module, example_inputs, **keywords):
        """In place of Inductor: a callable that allocates results and queues one kernel."""
        returned = [n.meta["val"] if isinstance(n, torch.fx.Node) else n
                    for n in module.graph.output_node().args[0]]

        def call(values):
            given = [Raw(v) if isinstance(v, torch.Tensor) else v for v in values]
            values.clear()
            results = [self.empty(v.shape, v.stride(), v.dtype) if isinstance(v, torch.Tensor)
                       else v for v in returned]
            self.launch(functools.partial(
                run, module, given, [Raw(r) for r in results if isinstance(r, torch.Tensor)]))
            self.spoil(SIZES_BYTES[-1])  # an intermediate
            return tuple(results)

        call._boxed_call = True
        call.current_callable = call  # as Inductor's has
        return call

    def spoil_all(self):
        """Somebody else uses every stream."""
        for stream in (self.main, *self.sides.values()):
            self.enter(stream)
            for size_bytes in SIZES_BYTES * 8:
                self.spoil(size_bytes)
        self.enter(self.main)


def run(module, given, results):
    answers = module(*[each.tensor() if isinstance(each, Raw) else each for each in given])
    answers = [answer for answer in answers if isinstance(answer, torch.Tensor)]
    for result, answer in zip(results, answers, strict=True):
        result.tensor().copy_(answer)


@pytest.fixture
def prompt_gpu(monkeypatch):
    """Regions run on the host, as Inductor compiles them, when they are queued."""
    gpu = LateGpu()
    packs = backend.SavingPartitioner
    monkeypatch.setattr(backend, "SavingPartitioner", lambda pack, memory, version: packs(
        False, memory, version))
    monkeypatch.setattr(backend, "HostInstance", gpu.make)
    return gpu


@pytest.fixture
def gpu(monkeypatch, prompt_gpu):
    monkeypatch.setattr(_compat, "compile_fx_inner", prompt_gpu.compile)
    return prompt_gpu


def program(seed):
    return function_of(Writer(seed).text(), f"program {seed}")


def wanted_of(function, seeds):
    wanted = []
    for seed in seeds:
        given = inputs(seed)
        wanted.append([*function(*given), *given])
    return wanted


def found_of(call, seeds, gpu):
    """What the caller sees on his stream, results let go as soon as he has queued his look."""
    found = []
    for seed in seeds:
        given = [gpu.put(tensor) for tensor in inputs(seed)]
        with torch.no_grad():
            answers = call(*given)
        found.append([gpu.read(tensor) for tensor in (*answers, *given)])
        del given, answers
        gpu.spoil_all()
        gpu.run(gpu.random.randrange(40))
    return found


def is_alike(found, wanted):
    return all(torch.equal(look[0], tensor) for looks, tensors in zip(found, wanted, strict=True)
               for look, tensor in zip(looks, tensors, strict=True))


def is_right(seed, gpu):
    """Whether a random program's results are eager's."""
    gpu.random.seed(seed)
    function, seeds = program(seed), range(CALLS * seed, CALLS * (seed + 1))
    found = found_of(compiled(function, options={"strict": True}), seeds, gpu)
    gpu.run()
    torch.compiler.reset()
    return is_alike(found, wanted_of(function, seeds))


@pytest.mark.parametrize("seeds", seed_parts(SEEDS, SEEDS_AT_A_TIME), ids=str)
def test_whatever_a_stream_does_first_results_are_eagers(seeds, gpu):
    for seed in seeds:
        assert is_right(seed, gpu), Writer(seed).text()
    assert len(gpu.instances) > SEEDS_AT_A_TIME // 2
    assert any(len(instance.planned.plan.waits) > 3 for instance in gpu.instances)


class Never(Event):
    """Whoever waits for it does not."""

    def __setattr__(self, name, value):
        super().__setattr__(name, None)


def without_waits(instance):
    for step in instance.planned.steps:
        step.waits.clear()


def without_begin(instance):
    instance._events.begin = Never()


def without_end(instance):
    instance._events.end = Never()


def without_joins(instance):
    instance.planned.exits.clear()


def without_telling_the_allocator(instance):
    instance.planned.from_sides.clear()


def without_holding(instance):
    """Each value goes behind its last reader, wherever that runs."""
    planned = instance.planned
    kept = {planned._index[value] for value in planned._returned}
    last = {index: step for step in planned.steps for index in (*step.reads, *step.makes)}
    for step in planned.steps:
        step.gone = [index for index, reader in last.items()
                     if reader is step and index not in kept]


@pytest.mark.parametrize("weaken", [
    without_waits, without_begin, without_end, without_joins, without_telling_the_allocator,
    without_holding])
def test_nothing_of_it_is_left_out_unseen(weaken, gpu):
    gpu.weaken = weaken
    assert not all(is_right(seed, gpu) for seed in range(WEAK_SEEDS))


def test_gradients_are_eagers(gpu):
    model = Towers(True)
    call = compiled(model, options={"strict": True})
    for seed in range(CALLS):
        x = normal(seed, 3, 8)
        found = call(gpu.put(x))
        seen = gpu.read(found)
        weights = normal(100 + seed, *found.shape)
        gradients = torch.autograd.grad(found, list(model.parameters()), gpu.put(weights))
        gradients_seen = [gpu.read(each) for each in gradients]
        del found, gradients
        gpu.spoil_all()
        gpu.run()
        answer = model(x)
        wanted = torch.autograd.grad(answer, list(model.parameters()), weights)
        torch.testing.assert_close([seen[0], *(each[0] for each in gradients_seen)],
                                   [answer.detach(), *wanted])
    assert len(gpu.instances) == 2


def test_each_set_of_sizes_has_an_instance(prompt_gpu, monkeypatch):
    monkeypatch.setattr(prompt_gpu, "record_stream", lambda tensor, stream: None)
    model = Towers(True)
    call = compiled(model, options={"strict": True}, dynamic=True)
    for rows in (3, 5, 3, 8):
        inputs = [normal(rows, rows, 8, grad=True) for _ in range(2)]
        found, wanted = (function(x) for function, x in zip((call, model), inputs, strict=True))
        for answer in (found, wanted):
            answer.sum().backward()
        torch.testing.assert_close([found, inputs[0].grad], [wanted, inputs[1].grad])
    assert len(prompt_gpu.instances) == 2 * 3


def test_threads_may_share_a_graph_its_streams_and_the_callers_stream(gpu):
    function = program(4)
    call = compiled(function, options={"strict": True})
    found_of(call, [0], gpu)
    ranges = [range(start, start + 3 * CALLS) for start in (100, 200)]

    def task(seeds):
        return lambda: found_of(call, seeds, gpu)

    for found, seeds in zip(together(*map(task, ranges)), ranges, strict=True):
        gpu.run()
        assert is_alike(found, wanted_of(function, seeds))


def sides(x, y):
    with anabranch.stream("urgent", priority=-2):
        a = torch.relu(x) @ x
    with anabranch.stream("other"):
        y.add_(1)
        b = y @ y
    return a + b


def compiled_sides(gpu):
    call = compiled(sides, options={"strict": True})
    return lambda x, y: call(gpu.put(x), gpu.put(y))


def test_streams_are_made_with_their_priorities_and_used_again(gpu):
    call = compiled_sides(gpu)
    for _ in range(CALLS):
        call(*inputs(0)[:2])
    gpu.run()
    assert {(s.name, s.priority) for s in gpu.sides.values()} == {("urgent", -2), ("other", 0)}
    assert len(gpu.instances) == 1


def test_it_is_told_of(gpu):
    call = compiled_sides(gpu)
    explanation = anabranch.explain(call, *inputs(0)[:2])
    told = str(explanation)
    assert "3 regions on the caller's stream and urgent of priority -2, other, 2 waits" in told
    assert "Inductor's callable on stream urgent" in told
    assert told.count(" waits for ") == 2
    (graph,) = explanation.to_dict()["graphs"]
    assert graph["memory"] is None and graph["plan"]["arena"] is None, "memory is torch's"
    assert len(graph["plan"]["waits"]) == 2 and graph["launch"] is None


def test_in_a_capture_events_are_new_and_the_allocator_is_told_nothing(gpu):
    call = compiled(sides, options={"strict": True})
    seeds = range(CALLS)
    gpu.is_capturing = True
    looks = []
    for seed in seeds:
        x, y = map(gpu.put, inputs(seed)[:2])
        looks.append(gpu.read(call(x, y)))
    [instance] = gpu.instances
    events = instance._events
    recorded = [events.begin, events.end, *(e for e in events.behind if e is not None)]
    assert all(event.mark is None for event in recorded)
    assert not any(users for _, _, users in gpu._blocks.values())
    gpu.run()
    assert all(torch.equal(look[0], sides(*inputs(seed)[:2]))
               for look, seed in zip(looks, seeds, strict=True))


def reads_on_the_callers_stream(a, x):
    b = torch.sin(a) @ x
    with anabranch.stream("side"):
        c = torch.relu(x) @ x
    return b + c


@pytest.mark.parametrize("is_capturing", [False, True])
def test_an_input_that_a_side_stream_made_is_not_its_memory_again_too_early(is_capturing, gpu):
    """As a backward is given what the forward saved, and nobody else has it any more."""
    call = compiled(reads_on_the_callers_stream, options={"strict": True})
    call(*map(gpu.put, inputs(0)[:2]))
    [instance], [side] = gpu.instances, gpu.sides.values()
    gpu.is_capturing = is_capturing
    for seed in range(4 * CALLS):
        a, x = inputs(seed)[:2]
        gpu.enter(side)
        args = [gpu.put(a)]
        gpu.enter(gpu.main)
        gpu.main.wait_stream(side)
        if not is_capturing:
            gpu.record_stream(args[0], gpu.main)
        args.append(gpu.put(x))
        look = gpu.read(instance.run(args)[0])
        gpu.run()
        assert torch.equal(look[0], reads_on_the_callers_stream(a, x))


def test_a_failing_region_leaves_its_stream_and_joins_the_others(gpu):
    call = compiled(sides, options={"strict": True})
    for seed in range(CALLS):
        given = inputs(seed)[:2]
        x, y = map(gpu.put, given)
        call(x, y)
        [instance] = gpu.instances
        last = instance.planned.steps[-1]
        works, last.call = last.call, fail
        x, y = map(gpu.put, given)
        with pytest.raises(ZeroDivisionError):
            call(x, y)
        last.call = works
        assert gpu.ambient() is gpu.main
        changed = gpu.read(y)
        gpu.spoil_all()
        look = gpu.read(call(x, y))
        gpu.run()
        assert torch.equal(changed[0], given[1] + 1)
        given[1].add_(1)
        assert torch.equal(look[0], sides(*given))


def fail(values):
    return [1 // 0]
