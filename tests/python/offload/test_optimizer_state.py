# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state in the host's memory, on a GPU that runs its streams for copies in any order
that waits allow; what the caller's stream is given runs at once, since these are torch's own steps.
"""

import contextlib
import copy
import itertools
import pickle
import weakref

import pytest
import torch
from stand_in_gpu import Event, Gpu, Mark, Raw, Stream
from stand_in_recording import StandIn

import anabranch
from anabranch import config
from anabranch._offload import copies, host_memory, optimizer_chunks, optimizer_state
from anabranch._record.capture.access_notes import AccessNotes
from anabranch._record.recorder import Recorder
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.state import state as state_module
from anabranch.errors import RecordWarning, WrongArgument

pytestmark = pytest.mark.oldest
JUNK = 0x5A
IN_FLIGHT = 4 * 2 * 4 * 64  # so that a chunk is the state of one parameter of 64, or several small


class Main(Stream):
    """Of the caller: a wait lets others run, in some order, until what is waited for is done."""

    def __init__(self, gpu):
        super().__init__("main")
        self.gpu = gpu

    def mark(self):
        mark = Mark()
        mark.is_reached = True
        return mark

    def wait_event(self, event):
        while not event.mark.is_reached:
            sides = list(self.gpu.sides.values())
            self.gpu.random.shuffle(sides)
            assert any(side.advance() for side in sides), "a deadlock"


class Lanes(copies.Lanes):
    def __init__(self, gpu):
        self.gpu = gpu
        self.out, self.into = (gpu.side(gpu.main, name, 0) for name in ("out", "in"))
        self.in_use = self.most_in_use = 0

    def current(self):
        return self.gpu.main

    def mark(self, stream):
        event = Event()
        stream.record_event(event)
        return event

    def copy(self, stream, to, source):
        target, origin = Raw(to), Raw(source)
        stream.queue.append(lambda: target.tensor().copy_(origin.tensor()))

    def empty(self, size, stride, dtype):
        made = self.gpu.empty(size, stride, dtype)
        made.view(-1).view(torch.uint8).fill_(JUNK) if made.is_contiguous() else made.fill_(JUNK)
        return made

    def synchronize(self):
        self.gpu.run()


@pytest.fixture
def lanes(monkeypatch):
    """Of a GPU whose memory is that of the CPU; ``homes`` are the tensors in pinned memory."""
    gpu = Gpu()
    gpu.main = Main(gpu)
    made = Lanes(gpu)
    made.homes = {}

    def pinned_like(value, dtype, least_free):
        home = torch.empty_like(value, dtype=dtype).fill_(JUNK)
        made.homes[home.data_ptr()] = home
        return home

    monkeypatch.setattr(copies, "_lanes", {torch.device("cpu"): made})
    monkeypatch.setattr(host_memory, "may_leave", lambda device: True)
    monkeypatch.setattr(host_memory, "pinned_like", pinned_like)
    for name in ("is_home", "is_pinned"):
        monkeypatch.setattr(host_memory, name, lambda value: value.data_ptr() in made.homes)
    monkeypatch.setattr(optimizer_chunks, "LEAST_BYTES", 64)
    return made


def make_parameters(dtype=torch.float32):
    torch.manual_seed(0)
    shapes = [(8, 8), (8,), (64,), (4, 4, 4), (3,), (16, 8), (8, 8), (5, 5)]
    made = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    made.append(torch.nn.Parameter(torch.randn(8, 8, dtype=dtype).t()))  # as it lies, not in order
    return made


def set_gradients(parameters, step, without=()):
    torch.manual_seed(step)
    for i, parameter in enumerate(parameters):
        grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, dtype=parameter.dtype))
        parameter.grad = None if i in without else grad


def run(make, offload, steps=4, dtype=torch.float32):
    """Parameters and state that an optimizer has after some steps; some have no gradient at first,
    and one never has."""
    parameters = make_parameters(dtype)
    optimizer = offload(make(parameters))
    for step in range(steps):
        set_gradients(parameters, step, without=(3,) if step else (2, 3, 5))
        optimizer.step()
    return parameters, optimizer


def offloaded(optimizer):
    return anabranch.offload_optimizer(optimizer, in_flight_bytes=IN_FLIGHT)


def assert_same(found, wanted):
    for one, other in zip(found[0], wanted[0], strict=True):
        assert torch.equal(one, other)
    states = [optimizer.state_dict()["state"] for _, optimizer in (found, wanted)]
    assert states[0].keys() == states[1].keys()
    for number, wants in states[1].items():
        for key, value in wants.items():
            assert torch.equal(torch.as_tensor(states[0][number][key]), torch.as_tensor(value))


def split(parameters):
    return [{"params": parameters[:3], "weight_decay": 0.1}, {"params": parameters[3:]}]


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
    "adamw by lists": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(split(p), fused=True, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(split(p)),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_same_optimizer_without_it(lanes, name):
    wanted = run(OPTIMIZERS[name], lambda optimizer: optimizer)
    for seed in range(5):
        lanes.gpu.random.seed(seed)
        found = run(OPTIMIZERS[name], offloaded)
        assert_same(found, wanted)
        assert all(host_memory.is_home(value) for state in found[1].state.values()
                   for value in state.values() if optimizer_chunks.moves(value))


@pytest.mark.parametrize("left_out", ["arrive", "end"])
def test_without_either_wait_some_order_is_wrong(lanes, monkeypatch, left_out):
    """So the test above would see it."""
    class Mistaken(optimizer_chunks._Trip):
        def leave(self):
            done = self._done
            super().leave()
            self._done = done if left_out == "end" else self._done

        def arrive(self):
            if left_out == "arrive":
                self._done = self._lanes.mark(self._lanes.current())
            super().arrive()

    monkeypatch.setattr(optimizer_chunks, "_Trip", Mistaken)
    wanted, _ = run(OPTIMIZERS["adam"], lambda optimizer: optimizer)
    are_right = []
    for seed in range(20):
        lanes.gpu.random.seed(seed)
        found, _ = run(OPTIMIZERS["adam"], offloaded)
        are_right.append(all(map(torch.equal, found, wanted)))
    assert not all(are_right)


def test_complex_parameters_and_those_of_halves_are_updated_alike(lanes):
    for dtype in (torch.complex64, torch.bfloat16):
        wanted = run(OPTIMIZERS["adam"], lambda optimizer: optimizer, dtype=dtype)
        assert_same(run(OPTIMIZERS["adam"], offloaded, dtype=dtype), wanted)


def test_parameters_with_sparse_gradients_are_updated_alike(lanes):
    found = []
    for offload in (lambda optimizer: optimizer, offloaded):
        parameters = make_parameters()[:6]
        optimizer = offload(torch.optim.SparseAdam(parameters))
        for step in range(3):
            set_gradients(parameters, step)
            for one in parameters:
                one.grad = (one.grad * (one.grad > 0)).to_sparse(1)
            optimizer.step()
        found.append((parameters, optimizer))
    assert_same(found[1], found[0])
    assert optimizer.pinned_state_bytes > 0


def test_no_more_is_on_the_gpu_than_was_granted_or_three_parameters_have(lanes, monkeypatch):
    held, most = [], []
    kept = lanes.empty

    def empty(size, stride, dtype):
        made = kept(size, stride, dtype)
        held.append(weakref.ref(made))
        most.append(sum(one().nbytes for one in held if one() is not None))
        return made

    monkeypatch.setattr(lanes, "empty", empty)
    parameters = [torch.nn.Parameter(torch.zeros(64)) for _ in range(20)]
    of_one = 2 * 4 * 64
    for granted, bound in ((8 * of_one, 8 * of_one), (of_one, 3 * of_one)):
        optimizer = anabranch.offload_optimizer(torch.optim.Adam(parameters),
                                                in_flight_bytes=granted)
        for step in range(3):
            set_gradients(parameters, step)
            optimizer.step()
        assert bound // 2 < max(most) <= bound
        most.clear()
    assert optimizer.pinned_state_bytes == 20 * of_one


def test_hooks_and_closures_run_once_a_step_and_schedulers_see_it(lanes, recwarn):
    for is_late in (False, True):
        parameters = make_parameters()
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer = offloaded(optimizer) if not is_late else optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer = offloaded(optimizer) if is_late else optimizer
        ran = []
        optimizer.register_step_pre_hook(lambda *_: ran.append("pre"))
        optimizer.register_step_post_hook(lambda *_: ran.append("post"))

        def closure():
            assert torch.is_grad_enabled()
            ran.append("closure")
            set_gradients(parameters, 0)
            return "loss"

        assert optimizer.step(closure) == "loss" and ran == ["pre", "closure", "post"]
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert [len(group["params"]) for group in optimizer.param_groups] == [len(parameters)]
    assert not [one for one in recwarn if "lr_scheduler" in str(one.message)]


def test_state_goes_to_a_plain_optimizer_and_comes_back_without_the_gpu(lanes, monkeypatch):
    parameters, optimizer = run(OPTIMIZERS["adamw fused"], offloaded)
    plain = OPTIMIZERS["adamw fused"](make_parameters())
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert type(plain) is torch.optim.AdamW
    assert_same((parameters, plain), (parameters, optimizer))
    loaded = offloaded(OPTIMIZERS["adamw fused"](make_parameters()))
    moved = []
    monkeypatch.setattr(optimizer_state.OffloadedState, "_move_out",
                        lambda self: moved.append(self.pinned_state_bytes))
    loaded.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert moved == [optimizer.pinned_state_bytes]  # all of it was there before anything is moved
    assert_same((parameters, loaded), (parameters, plain))


def test_state_that_is_there_already_moves_at_once(lanes):
    parameters, plain = run(OPTIMIZERS["adam"], lambda optimizer: optimizer)
    wanted = copy.deepcopy(plain.state_dict())
    optimizer = offloaded(plain)
    assert optimizer is plain and optimizer.pinned_state_bytes > 0
    assert isinstance(optimizer, torch.optim.Adam) and "Adam (" in repr(optimizer)
    found = optimizer.state_dict()["state"]
    assert all(torch.equal(found[i][key], wanted["state"][i][key])
               for i in found for key in found[i])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_optimizer_is_one_with_its_state_in_pinned_memory(lanes, copied):
    parameters, optimizer = run(OPTIMIZERS["adam"], offloaded)
    made = copied(optimizer)
    theirs = made.param_groups[0]["params"]
    assert made.pinned_state_bytes == optimizer.pinned_state_bytes > 0
    for each in (parameters, theirs):
        set_gradients(each, 9)
    optimizer.step()
    made.step()
    assert_same((theirs, made), (parameters, optimizer))


def test_what_a_step_that_raises_has_brought_in_goes_out_again(lanes):
    parameters, optimizer = run(OPTIMIZERS["sgd"], offloaded)
    set_gradients(parameters, 7)
    group = optimizer.param_groups[0]
    group["momentum"] = "much"
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises((TypeError, RuntimeError)):
        optimizer.step()
    assert optimizer.param_groups == [group] and group["params"] == parameters
    assert all(host_memory.is_home(state["momentum_buffer"]) for i, state in
               enumerate(optimizer.state.values()) if optimizer_chunks.moves(state["momentum_buffer"]))
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(after[i]["momentum_buffer"], before[i]["momentum_buffer"])
               for i in before)


def test_a_scaler_skips_a_step_with_infinite_gradients_as_without(lanes):
    found = []
    for offload in (lambda optimizer: optimizer, offloaded):
        parameters = make_parameters()
        optimizer = offload(torch.optim.AdamW(parameters, fused=True))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(3):
            set_gradients(parameters, step)
            scaler.scale(torch.ones(()))  # begins
            if step == 1:
                parameters[0].grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        found.append((parameters, optimizer))
    assert_same(found[1], found[0])


class Counting(torch.optim.Optimizer):
    """A user's: it counts its steps in its groups, and each parameter is updated by itself."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for one in group["params"]:
                mean = self.state[one].setdefault("mean", torch.zeros_like(one))
                if one.grad is not None:
                    mean.lerp_(one.grad, 0.5)
                    one.sub_(mean, alpha=group["lr"] / group["count"])


def test_another_optimizer_moves_where_each_parameter_is_said_to_be_updated_alone(lanes):
    wanted, plain = run(Counting, lambda optimizer: optimizer)
    with pytest.warns(RecordWarning, match=r"(?s)Counting is not torch's.*E0339"):
        _, refused = run(Counting, offloaded)
    assert type(refused) is Counting
    found, optimizer = run(Counting, lambda one: anabranch.offload_optimizer(
        one, in_flight_bytes=IN_FLIGHT, each_alone=True))
    assert all(map(torch.equal, found, wanted)) and optimizer.pinned_state_bytes > 0
    assert optimizer.param_groups[0]["count"] == plain.param_groups[0]["count"] == 4


@pytest.mark.parametrize(("make", "why"), [
    (lambda p: torch.optim.LBFGS(p), "LBFGS looks at all parameters at once"),
    (lambda p: torch.optim.SGD(p, differentiable=True), "differentiable=True"),
])
def test_an_optimizer_whose_step_cannot_be_cut_stays_as_it_is_and_it_is_told(lanes, make, why):
    optimizer = make(make_parameters())
    kind = type(optimizer)
    with pytest.warns(RecordWarning, match=why):
        assert anabranch.offload_optimizer(optimizer) is optimizer
    assert type(optimizer) is kind


def test_without_pinned_memory_the_state_stays_and_it_is_told_once(lanes, monkeypatch):
    def refuse(value, dtype, least_free):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(host_memory, "pinned_like", refuse)
    wanted = run(OPTIMIZERS["adam"], lambda optimizer: optimizer)
    with pytest.warns(RecordWarning, match="an optimizer's state stays on the GPU: no .* bytes of "
                      "pinned memory are to be had.*out of memory") as told:
        found = run(OPTIMIZERS["adam"], offloaded)
    assert_same(found, wanted)
    assert len(told) == 1 and found[1].pinned_state_bytes == 0


def test_the_last_of_the_hosts_memory_is_not_pinned(monkeypatch):
    monkeypatch.setattr(host_memory, "host_free_bytes", lambda: 1000)
    monkeypatch.setattr(host_memory, "pinned_bytes",
                        lambda size: torch.zeros(size, dtype=torch.uint8))
    value = torch.ones(8, 4).t()
    home = host_memory.pinned_like(value, torch.bfloat16, 900)
    assert (home.shape, home.stride(), home.dtype) == ((4, 8), (1, 4), torch.bfloat16)
    assert home.untyped_storage().nbytes() == home.nbytes
    with pytest.raises(RuntimeError, match="the host has 1000 bytes left"):
        host_memory.pinned_like(value, torch.float32, 900)


class Wrapping(torch.Tensor):
    """A class of a library's."""


def test_a_group_with_parameters_of_another_kind_is_updated_whole_where_it_is(lanes):
    found = []
    for offload in (lambda optimizer: optimizer, offloaded):
        parameters = [*make_parameters()[:3], torch.zeros(8, 8).as_subclass(Wrapping).requires_grad_()]
        optimizer = torch.optim.Adam([{"params": parameters[:2]}, {"params": parameters[2:]}])
        with contextlib.nullcontext() if offload is not offloaded else \
                pytest.warns(RecordWarning, match="or of classes that wrap tensors"):
            offload(optimizer)
        for step in range(3):
            set_gradients(parameters, step)
            optimizer.step()
        found.append([one.detach().as_subclass(torch.Tensor) for one in parameters])
    assert all(map(torch.equal, *found))
    homes = [host_memory.is_home(optimizer.state[one]["exp_avg"]) for one in parameters]
    assert homes == [True, False, False, False]  # the second is small
    optimizer.load_state_dict(optimizer.state_dict())
    set_gradients(parameters, 3)
    optimizer.step()
    homes = [host_memory.is_home(optimizer.state[one]["exp_avg"]) for one in parameters]
    assert homes == [True, False, False, False]


def test_one_that_wraps_another_is_answered_and_the_inner_one_moves(lanes):
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)

    wrapper = Wrapper(torch.optim.Adam(make_parameters()))
    assert anabranch.offload_optimizer(wrapper) is wrapper
    assert isinstance(wrapper.optimizer, optimizer_state.OffloadedState)


def test_groups_that_are_added_move_too_and_gradients_go(lanes):
    parameters, optimizer = run(OPTIMIZERS["adam"], offloaded)
    before = optimizer.pinned_state_bytes
    more = make_parameters()[:1]
    optimizer.add_param_group({"params": more})
    set_gradients(more, 5)
    optimizer.step()
    assert optimizer.pinned_state_bytes == before + 2 * 4 * 64
    optimizer.zero_grad()
    assert all(one.grad is None for one in (*parameters, *more))


def test_each_chunk_is_noted_by_itself_in_a_capture(lanes):
    """So that it need not wait for the gradients of others."""
    parameters, optimizer = run(OPTIMIZERS["adamw fused"], offloaded)
    set_gradients(parameters, 9)
    notes = AccessNotes(itertools.count(1).__next__, "cpu")
    with notes.known_calls():
        optimizer.step()
    _, chunks = optimizer_chunks.chunks_of(optimizer.param_groups, optimizer.state, IN_FLIGHT)
    place = {one.data_ptr(): i for i, chunk in enumerate(chunks)
             for some in chunk.parameters.values() for one in some}
    updates = [{place[address] for address, is_written in work.accesses if address in place}
               for work in notes.works if work.independent]
    found = [one for one in updates if one]
    assert len(chunks) > 3 and all(len(one) == 1 for one in found)
    assert set().union(*found) == set(place.values())


def test_on_the_cpu_nothing_moves():
    wanted = run(OPTIMIZERS["adamw fused"], lambda optimizer: optimizer)
    found = run(OPTIMIZERS["adamw fused"], anabranch.offload_optimizer)
    assert_same(found, wanted)
    assert found[1].pinned_state_bytes == 0


@pytest.mark.parametrize("given", [{"optimizer": [1]}, {"in_flight_bytes": 0},
                                   {"in_flight_bytes": "1G"}])
def test_what_is_no_optimizer_and_no_number_of_bytes_is_refused(given):
    with pytest.raises(WrongArgument, match="E0611"):
        anabranch.offload_optimizer(
            **{"optimizer": torch.optim.Adam(make_parameters()), **given})


def test_a_step_that_is_compiled_runs_in_chunks_all_the_same(lanes):
    wanted = run(OPTIMIZERS["adam"], lambda optimizer: optimizer)

    def compiled(optimizer):
        optimizer = offloaded(optimizer)
        optimizer.step = torch.compile(optimizer.step, backend="eager")
        return optimizer

    found = run(OPTIMIZERS["adam"], compiled)
    assert_same(found, wanted)
    assert found[1].pinned_state_bytes > 0


def test_a_recording_is_compared_from_the_state_that_the_step_has_met(lanes, monkeypatch):
    """Also in pinned memory, which the plain run has written by then."""
    monkeypatch.setattr(state_module, "is_pinned", host_memory.is_home)
    results = []
    for is_recorded in (False, True):
        parameters = make_parameters()[:4]
        optimizer = offloaded(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))

        def step(leaves, optimizer=optimizer):
            set_gradients(leaves, 1)
            optimizer.step()
            for leaf in leaves:
                leaf.grad = None
            return leaves[0].detach() + 1

        if not is_recorded:
            results.append([step(parameters) for _ in range(6)])
            continue
        StandIn(monkeypatch, arguments=4)
        recorder = Recorder(step, config.resolve({"max_parallel_kernels": 1}), "step",
                            kind=CallableKind(takes_gradients=True))
        found = [recorder.run("key", list(parameters), state_module.State([step]), lambda: "step")
                 for _ in range(6)]
        [spec] = list(recorder.specializations.values())
        assert spec.refusal is None and spec.recording is not None
        assert spec.recording.counts.launched_unchanged >= 3
        results.append(found)
    assert all(map(torch.equal, *results))
