# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams that lack no sync: eager cannot race at them, so that compiled code
must give the same bits as eager on one stream, and nothing may be told of them.

A program is a function of tensors (``x``, ``y``, ``w``) and of what its other parameters name: the
streams A, B and C, the current stream D, the events E and F, and the other attributes of a Place.
Numbers are small integers: every order of additions, and every way to multiply, gives the same.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from compare import assert_same, compiled, tensors_of

from anabranch import _compat, _user_program, _user_streams

SIZE = 8
TENSORS = ("x", "y", "w")
# What torch can do with streams of a GPU only; with those of the CPU it raises while it traces.
_ON_A_GPU = {"made by a record"}
_SINCE_215_ON_THE_CPU = {"record_event", "record_stream", "the device"}


@dataclasses.dataclass(frozen=True)
class Program:
    function: Callable[..., Any]
    needs: frozenset[str]
    has_gradients: bool

    @property
    def name(self) -> str:
        return self.function.__name__

    def at(self, place: Place) -> Callable[..., Any]:
        """The same as a function of tensors alone, on the streams of a place."""
        names = inspect.signature(self.function).parameters
        given = {name: getattr(place, name) for name in names if name not in TENSORS}
        function = self.function

        def run(*inputs: torch.Tensor) -> Any:
            return function(*inputs, **given)

        return run

    def inputs(self, seed: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        names = [n for n in inspect.signature(self.function).parameters if n in TENSORS]
        return tuple(torch.randint(-2, 3, (SIZE, SIZE), generator=generator).float().to(device)
                     .requires_grad_(self.has_gradients) for _ in names)


PROGRAMS: list[Program] = []


def program(*needs: str, gradients: bool = True) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(Program(function, frozenset(needs), gradients))
        return function

    return add


@dataclasses.dataclass
class Place:
    """Where programs run: streams, events, and functions that torch has for them."""

    device: str
    new_stream: Callable[[], Any]
    new_event: Callable[[], Any]
    D: Any
    current: Callable[[], Any]
    is_done: Callable[[Any], Any]  # whether an event has happened, asked outside of graphs
    cuda: Any = torch.cuda
    accelerator: Any = torch.accelerator
    lacks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.A, self.B, self.C = (self.new_stream() for _ in range(3))
        self.E, self.F = self.new_event(), self.new_event()

    def why_not(self, program: Program) -> str:
        missing = program.needs & self.lacks
        return f"torch {torch.__version__} has no {', '.join(missing)} here" if missing else ""


def host() -> Place:
    """torch's streams of the CPU, which are names. D is one of them: none is the current one."""
    current = torch.Stream(device="cpu")
    lacks = _ON_A_GPU if _compat.version >= (2, 15) else _ON_A_GPU | _SINCE_215_ON_THE_CPU
    return Place("cpu", lambda: torch.Stream(device="cpu"), lambda: torch.Event(device="cpu"),
                 current, lambda: current, torch.compiler.disable(lambda event: True),
                 lacks=frozenset(lacks))


def gpu() -> Place:
    return Place("cuda", torch.cuda.Stream, lambda: torch.Event("cuda"),
                 torch.cuda.current_stream(), torch.cuda.current_stream,
                 torch.compiler.disable(lambda event: event.query()))


class Nothing:
    """A stream, an event, or a module of torch, that does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> None:
        """For methods of tensors that take a stream."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def nowhere() -> Place:
    """One stream: what a program means."""
    nothing = Nothing()
    return Place("", *[nothing] * 7)


def note_reports(monkeypatch: Any, place: Place) -> list[str]:
    """What is told while graphs are compiled from now on. On the CPU D is the current stream."""
    told: list[str] = []
    check, ambient_of = _user_program.check, _user_streams._ambient_of

    def noted(*args: Any, **kwargs: Any) -> list[str]:
        texts = check(*args, **kwargs)
        told.extend(texts)
        return texts

    def with_current(ties: Any) -> set[int]:
        return ambient_of(ties) | {i for i in ties.streams
                                   if _compat.object_of_graph(i) is place.D}

    monkeypatch.setattr(_user_program, "check", noted)
    monkeypatch.setattr(_user_streams, "_ambient_of", with_current)
    return told


def compare_with_one_stream(program: Program, place: Place, options: dict[str, Any]) -> None:
    """Three calls, each with other data, bit for bit."""
    call, plain = compiled(program.at(place), options=options), program.at(nowhere())
    for seed in range(3):
        found = _left_by(call, program.inputs(seed, place.device))
        assert_same(found, _left_by(plain, program.inputs(seed, place.device)))


def _left_by(function: Callable[..., Any],
             inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Outputs, inputs afterwards, and gradients by weights that are whole numbers too."""
    outputs = dict(tensors_of(function(*inputs)))
    weighted = [(out * torch.arange(out.numel(), device=out.device).view(out.shape).remainder(5)
                 ).sum() for out in outputs.values() if out.requires_grad]
    if weighted:
        sum(weighted).backward()
    left = {name: out.detach() for name, out in outputs.items()}
    for number, given in enumerate(inputs):
        left[f"input {number}"] = given.detach()
        if given.grad is not None:
            left[f"gradient {number}"] = given.grad
    return left


# ---- forms of syncs


@program()
def joined_forth_and_back(x, A, D):
    z = x + x
    A.wait_stream(D)
    with A:
        w = z * 2
    D.wait_stream(A)
    return w + 1


@program()
def events_forth_and_back(x, A, D, E, F):
    z = x + x
    E.record(D)
    E.wait(A)
    with A:
        w = z * 2
        F.record(A)
    F.wait(D)
    return w + x


@program()
def streams_wait_for_events(x, A, D, E, F):
    z = x - 1
    E.record(D)
    A.wait_event(E)
    with A:
        a = z * z
    F.record(A)
    D.wait_event(F)
    return a + z


@program("record_event")
def streams_record_events(x, A, D, E, F):
    z = x + 2
    D.record_event(E)
    A.wait_event(E)
    with A:
        a = z * 3
    A.record_event(F)
    D.wait_event(F)
    return a - z


@program("made by a record")
def a_record_makes_its_event(x, A, D):
    z = x + 2
    begin = D.record_event()
    A.wait_event(begin)
    with A:
        a = z * 3
    end = A.record_event()
    D.wait_event(end)
    return a - z


@program()
def recorded_and_awaited_under_contexts(x, A, B, D, E):
    A.wait_stream(D)
    with A:
        a = x * 3
        E.record()
    with B:
        E.wait()
        b = a + 1
    D.wait_stream(B)
    return b


@program()
def side_streams_join_each_other(x, A, B, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    B.wait_stream(A)
    with B:
        b = a * 2
    D.wait_stream(B)
    return b - x


@program()
def entered_by_name_of_the_device(x, A, B, D, cuda):
    A.wait_stream(D)
    with cuda.stream(A):
        a = x * 2
    B.wait_stream(A)
    with cuda.stream(B):
        b = a - x
    D.wait_stream(B)
    return b


@program()
def the_current_stream_is_asked_for(x, A, current):
    z = x * 2
    A.wait_stream(current())
    with A:
        a = z + 3
    current().wait_stream(A)
    return a * z


@program()
def a_record_covers_what_lies_before_an_earlier_one(x, w, A, B, D, E, F):
    A.wait_stream(D)
    with A:
        a = x @ w
        E.record(A)
        F.record(A)
    F.wait(B)
    with B:
        b = torch.relu(a)
    D.wait_stream(B)
    return b


@program()
def the_last_record_counts(x, A, B, C, D, E):
    A.wait_stream(D)
    with A:
        a = x + 1
        E.record(A)
    E.wait(B)
    with B:
        b = a * 2
        E.record(B)
    E.wait(C)
    with C:
        c = b + a
    D.wait_stream(C)
    return c


@program()
def a_second_wait_adds_nothing(x, A, D):
    A.wait_stream(D)
    A.wait_stream(D)
    with A:
        a = x + 5
    D.wait_stream(A)
    D.wait_stream(A)
    return a * a


@program()
def waits_without_work(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(A)
    D.wait_stream(B)
    return x + 1


@program()
def two_streams_wait_for_one_event(x, A, B, D, E):
    z = x * 2
    E.record(D)
    E.wait(A)
    E.wait(B)
    with A:
        a = z + 1
    with B:
        b = z - 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a * b


@program()
def an_event_of_before_is_awaited(x, A, D, E):
    E.wait(A)  # of the caller, who recorded it behind what made x
    with A:
        a = x + 7
    D.wait_stream(A)
    return a


# ---- shapes


@program()
def diamond(x, A, B, D):
    y = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = y + 1
    with B:
        b = y - 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a * b


@program()
def diamond_joined_aside(x, A, B, C, D):
    y = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = y + 1
    with B:
        b = torch.relu(y)
    C.wait_stream(A)
    C.wait_stream(B)
    with C:
        c = a - b
    D.wait_stream(C)
    return c


@program()
def fan_out_to_three(x, w, A, B, C, D):
    y = x @ w
    parts = []
    for number, stream in enumerate((A, B, C)):
        stream.wait_stream(D)
        with stream:
            parts.append(y * number + 1)
    for stream in (A, B, C):
        D.wait_stream(stream)
    return parts[0] + parts[1] - parts[2]


@program()
def to_a_side_and_back_and_there_again(x, A, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    D.wait_stream(A)
    d = a * 2
    A.wait_stream(D)
    with A:
        again = d - a
    D.wait_stream(A)
    return again


@program()
def three_in_a_row(x, A, B, C, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    B.wait_stream(A)
    with B:
        b = a * 2
    C.wait_stream(B)
    with C:
        c = b - 1
    D.wait_stream(C)
    return c


@program()
def three_turns_with_one_event(x, A, D, E):
    for _ in range(3):
        A.wait_stream(D)
        with A:
            x = x * 2
            E.record(A)
        E.wait(D)
        x = x + 1
    return x


@program()
def nested_contexts(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x + 1
        with B:
            b = x * 3
        again = x - 2
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b + again


@program()
def ping_pong(x, w, A, B, D, E, F):
    A.wait_stream(D)
    for _ in range(2):
        with A:
            x = torch.relu(x @ w)
            E.record(A)
        E.wait(B)
        with B:
            x = x - 1
            F.record(B)
        F.wait(A)
    D.wait_stream(A)
    return x


@program()
def a_pipeline_of_two_stages(x, A, B, D, E):
    A.wait_stream(D)
    found = []
    for row in x.split(2):
        with A:
            first = row * 2
            E.record(A)
        E.wait(B)
        with B:
            found.append(first + 1)
    D.wait_stream(B)
    return torch.cat(found)


@program()
def two_rounds_of_forks(x, A, B, D):
    for factor in (2, 3):
        A.wait_stream(D)
        B.wait_stream(D)
        with A:
            a = x * factor
        with B:
            b = x + factor
        D.wait_stream(A)
        D.wait_stream(B)
        x = a - b
    return x


@program()
def a_side_stream_forks(x, A, B, C, D):
    A.wait_stream(D)
    with A:
        a = x + 3
    B.wait_stream(A)
    C.wait_stream(A)
    with B:
        b = a * 2
    with C:
        c = a - 2
    A.wait_stream(B)
    A.wait_stream(C)
    with A:
        a = b * c
    D.wait_stream(A)
    return a


@program()
def unrelated_work_beside_each_other(x, y, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x * 2
    with B:
        b = y + 3
    D.wait_stream(A)
    D.wait_stream(B)
    return a, b


# ---- fusion and placement


@program()
def two_chains_and_a_join(x, y, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = torch.relu(x + 1) * 2
    with B:
        b = torch.relu(y - 1) * 3
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b


@program()
def a_chain_at_home_then_one_aside(x, A, D):
    z = torch.relu(x + 1) - 2
    A.wait_stream(D)
    with A:
        a = torch.relu(z * 2) + 1
    D.wait_stream(A)
    return a


@program()
def four_pointwise_on_one_side(x, A, D):
    A.wait_stream(D)
    with A:
        a = torch.relu((x + 1) * 2) - x
    D.wait_stream(A)
    return a


@program()
def equal_work_on_both_sides(x, y, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = torch.relu(x) + 1
    with B:
        b = torch.relu(y) + 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a, b


@program()
def every_other_column_is_copied_elsewhere(x, A, B, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    B.wait_stream(A)
    with B:
        b = a[:, ::2].contiguous()
    D.wait_stream(B)
    return b, a


@program()
def a_reduction_aside(x, A, D):
    y = x * 2
    A.wait_stream(D)
    with A:
        total = y.sum(0)
    home = y + 1
    D.wait_stream(A)
    return home - total


@program()
def products_on_two_streams(x, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x @ w
    with B:
        b = w @ x
    D.wait_stream(A)
    D.wait_stream(B)
    return a - b


# ---- the host


@program()
def the_host_waits_for_a_stream(x, A, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    A.synchronize()
    return a * 2


@program()
def the_host_waits_for_an_event(x, A, D, E):
    A.wait_stream(D)
    with A:
        a = x + 1
        E.record(A)
    E.synchronize()
    return a * 2


@program("the device")
def the_host_waits_for_the_device(x, A, B, D, cuda):
    A.wait_stream(D)
    with A:
        a = x + 1
    cuda.synchronize()
    with B:
        b = a * 2
    D.wait_stream(B)
    return b


@program()
def the_host_waits_for_whatever_device(x, A, D, accelerator):
    A.wait_stream(D)
    with A:
        a = x * 3
    accelerator.synchronize()
    return a - x


@program()
def the_host_waits_where_no_stream_is_named(x, accelerator):
    y = x * 3
    accelerator.synchronize()
    return y - x


@program()
def the_host_asks(x, A, D, E, is_done):
    A.wait_stream(D)
    with A:
        a = x + 1
        E.record(A)
    if is_done(E):  # breaks the graph
        return a * 2
    E.synchronize()
    return a + a


@program()
def the_host_waits_first(x, A, D):
    z = x * 2
    D.synchronize()
    with A:
        a = z + 1
    D.wait_stream(A)
    return a


@program()
def the_host_orders_streams_that_do_not_wait(x, A, B, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    A.synchronize()
    with B:
        b = a + 1
    B.synchronize()
    return b - a


@program()
def the_host_waits_in_every_turn(x, A, D):
    for _ in range(3):
        A.wait_stream(D)
        with A:
            x = x + 2
        A.synchronize()
    return x


# ---- breaks of the graph


@program()
def recorded_before_a_break_and_awaited_behind_it(x, w, A, B, D, E):
    A.wait_stream(D)
    with A:
        a = x @ w
        E.record(A)
    torch._dynamo.graph_break()
    E.wait(B)
    with B:
        b = torch.relu(a)
    D.wait_stream(B)
    return b


@program()
def home_is_recorded_before_a_break(x, A, D, E):
    y = x * 3
    E.record(D)
    torch._dynamo.graph_break()
    E.wait(A)
    with A:
        a = y + x
    D.wait_stream(A)
    return a


@program()
def work_goes_on_aside_behind_a_break(x, w, A, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    torch._dynamo.graph_break()
    with A:
        b = a @ w
    D.wait_stream(A)
    return b - x


@program()
def joined_behind_a_break(x, A, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    torch._dynamo.graph_break()
    D.wait_stream(A)
    return a + 1


# ---- objects


@program()
def a_stream_made_inside(x, D, new_stream):
    side = new_stream()
    side.wait_stream(D)
    with side:
        a = x * 2
    D.wait_stream(side)
    return a + 1


@program()
def an_event_made_inside(x, A, D, new_event):
    event = new_event()
    A.wait_stream(D)
    with A:
        a = x * 4
        event.record(A)
    event.wait(D)
    return a


@program()
def streams_of_a_table(x, A, B, D):
    table = {"left": A, "right": B}
    found = {}
    for name, stream in table.items():
        stream.wait_stream(D)
        with stream:
            found[name] = x * len(name)
    for stream in table.values():
        D.wait_stream(stream)
    return found["left"] - found["right"]


def _beside(stream, home, work, *inputs):
    stream.wait_stream(home)
    with stream:
        found = work(*inputs)
    home.wait_stream(stream)
    return found


@program()
def a_helper_takes_streams(x, A, B, D):
    a = _beside(A, D, torch.relu, x)
    b = _beside(B, D, lambda left, right: left * right, a, x)
    return b


@program()
def the_current_stream_of_a_context(x, A, D, E, cuda):
    A.wait_stream(D)
    with A:
        a = x + 9
        E.record(cuda.current_stream())
    E.wait(D)
    return a


@program()
def the_current_stream_is_entered(x, A, D):
    with D:
        z = x + 1
    A.wait_stream(D)
    with A:
        a = z * z
    D.wait_stream(A)
    with D:
        return a - z


@program()
def one_stream_by_two_names(x, A, D):
    other = A
    A.wait_stream(D)
    with A:
        a = x + 1
    with other:
        b = a * 2
    D.wait_stream(other)
    return b


@program()
def work_goes_on_behind_a_context_that_is_left_early(x, A, D):
    def inner(t):
        with A:
            if t.shape[0] == SIZE:
                return t + 1
            return t

    A.wait_stream(D)
    a = inner(x)
    D.wait_stream(A)
    return a * 2


# ---- memory


@program("record_stream")
def an_intermediate_is_told_of_its_stream(x, A, D):
    y = x + 1
    A.wait_stream(D)
    y.record_stream(A)
    with A:
        z = y * 2
    D.wait_stream(A)
    return z


@program("record_stream")
def an_input_is_told_of_its_stream(x, A, D):
    A.wait_stream(D)
    with A:
        z = x * 2
    x.record_stream(A)
    D.wait_stream(A)
    return z


@program()
def dropped_after_use_on_several_streams(x, w, A, B, D):
    t = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = t @ w
    with B:
        b = t + 1
    D.wait_stream(A)
    D.wait_stream(B)
    del t
    again = x * 5
    return a + b - again


@program()
def one_event_chains_four_streams(x, A, B, C, D, E):
    y = x + 1
    found = []
    E.record(D)
    for number, stream in enumerate((A, B, C)):
        E.wait(stream)
        with stream:
            found.append(y * number)
            E.record(stream)
    E.wait(D)
    return tuple(found)


@program()
def used_aside_then_at_home_then_elsewhere(x, w, A, D):
    t = x - 3
    A.wait_stream(D)
    with A:
        a = t @ w
    home = t + 1
    D.wait_stream(A)
    other = torch.relu(home)
    return a + other


# ---- views


@program()
def columns_apart_are_changed_beside_each_other(x, A, D):
    y = x * 2
    A.wait_stream(D)
    with A:
        y[:, ::2].add_(1)
    y[:, 1::2].add_(2)
    D.wait_stream(A)
    return y


@program()
def rows_apart_are_written_beside_each_other(x, A, B, D):
    y = torch.zeros_like(x)
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        y[:4].copy_(x[4:])
    with B:
        y[4:].copy_(x[:4])
    D.wait_stream(A)
    D.wait_stream(B)
    return y + 0


@program()
def a_view_is_read_aside(x, A, D):
    t = x * 2
    flat = t.view(-1)
    A.wait_stream(D)
    with A:
        a = flat[1::2].sum()
    home = t.t() + 1
    D.wait_stream(A)
    return home * a


@program()
def views_of_an_input_on_two_streams(x, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x.t() @ w
    with B:
        b = x[1:5].sum(1)
    D.wait_stream(A)
    D.wait_stream(B)
    return a, b


@program()
def broadcast_aside(x, A, D):
    column = x.sum(1, keepdim=True)
    A.wait_stream(D)
    with A:
        a = column.expand(SIZE, SIZE) - x
    D.wait_stream(A)
    return a


@program()
def a_misaligned_view_on_two_streams(x, w, A, B, D):
    odd = x.view(-1)[1:50].view(7, 7)
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        p = odd @ w[:7, :7]
    with B:
        q = odd @ w[1:, 1:]
    D.wait_stream(A)
    D.wait_stream(B)
    return p + q


# ---- changes in place


@program()
def changed_aside(x, A, D):
    y = x * 3
    A.wait_stream(D)
    with A:
        y.add_(1)
    D.wait_stream(A)
    return y * 2


@program()
def changed_when_its_reader_is_done(x, w, A, D):
    h = x * 2
    A.wait_stream(D)
    with A:
        shared = h + w
    D.wait_stream(A)
    h.add_(1)
    return shared + h


@program()
def changed_on_two_streams_in_turn(x, A, B, D, E):
    y = x + 1
    A.wait_stream(D)
    with A:
        y.mul_(2)
        E.record(A)
    E.wait(B)
    with B:
        y.sub_(3)
    D.wait_stream(B)
    return y


@program()
def overwritten_aside(x, y, A, D):
    z = x * 1
    kept = z + y
    A.wait_stream(D)
    with A:
        z.copy_(y)
        z.mul_(2)
    D.wait_stream(A)
    return z - kept


@program()
def zeroed_then_added_to(x, A, B, D):
    total = x * 1
    A.wait_stream(D)
    with A:
        total.zero_()
    B.wait_stream(A)
    with B:
        total.add_(x * 2)
    D.wait_stream(B)
    return total


@program(gradients=False)
def an_input_is_changed_aside(x, A, D):
    A.wait_stream(D)
    with A:
        x.add_(1)
    D.wait_stream(A)
    return x.sum()


@program(gradients=False)
def an_input_is_changed_through_a_view(x, A, B, D, E):
    A.wait_stream(D)
    with A:
        x.view(-1)[3:].add_(1)
        E.record(A)
    E.wait(B)
    with B:
        b = x * 2
    D.wait_stream(B)
    return b


@program(gradients=False)
def a_cache_is_filled_then_read_by_branches(x, w, A, B, D, E):
    w[:2] = x[:2]
    E.record(D)
    E.wait(A)
    E.wait(B)
    with A:
        a = x @ w
    with B:
        b = w[:2].sum(0)
    D.wait_stream(A)
    D.wait_stream(B)
    return a - b


@program(gradients=False)
def an_input_is_read_aside_then_changed_at_home(x, A, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    D.wait_stream(A)
    x.sub_(a)
    return x + a


# ---- what matters in the backward


@program()
def gradients_of_one_input_from_two_streams(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x * 2
    with B:
        b = x + 3  # leaves no node in the backward
    D.wait_stream(A)
    D.wait_stream(B)
    return a * b


@program()
def all_of_the_forward_aside(x, w, A, D):
    A.wait_stream(D)
    with A:
        h = torch.relu(x @ w)
    D.wait_stream(A)
    return h


@program()
def a_weight_of_two_streams(x, y, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = torch.relu(x @ w)
    with B:
        b = torch.relu(y @ w)
    D.wait_stream(A)
    D.wait_stream(B)
    return a - b


@program()
def what_is_saved_comes_from_two_streams(x, y, A, B, D, E):
    A.wait_stream(D)
    with A:
        a = x + y
        E.record(A)
    E.wait(B)
    with B:
        b = a * x
    D.wait_stream(B)
    return b * a


@program()
def detached_aside(x, A, D):
    y = x * 2
    A.wait_stream(D)
    with A:
        gate = (y.detach() > 0).float()
    D.wait_stream(A)
    return y * gate


@program()
def one_input_used_three_times(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x * x
    with B:
        b = x * 3
    d = x - 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b + d
