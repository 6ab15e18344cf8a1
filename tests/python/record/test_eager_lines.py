# SPDX-License-Identifier: Apache-2.0
"""Lines of eager code behind what a capture queues. Operators of the CPU stand for nodes: a mode
counts them, which a capture needs no mode for."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from noting import compiled
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch._record.capture.access_notes import AccessNotes
from anabranch._record.capture.eager_lines import EagerLines
from anabranch._record.capture.labels import Labels, is_users

pytestmark = [pytest.mark.oldest, pytest.mark.own]


class Graph:
    """A capture that gets a node for each call of ``queue``, which has no frame."""

    def __init__(self):
        self.names, self.of, self.marks = [], [], 0
        self.queue = self.names.append
        self.labels = Labels()
        self.lines = EagerLines(lambda: len(self.names) > len(self.of), self.mark, self.labels)

    def mark(self):
        self.of += [self.marks] * (len(self.names) - len(self.of))
        self.marks += 1
        return self.marks - 1

    def told(self):
        """By node, the text of its line."""
        found = [label.line.text if (label := self.labels.of(mark)) else None for mark in self.of]
        found += [None] * (len(self.names) - len(found))
        return dict(zip(self.names, found, strict=True))


@pytest.fixture
def graph():
    if sys.gettrace() is not None:
        pytest.skip("somebody else traces")
    return Graph()


def test_each_line_has_what_it_queued_and_operators_have_no_frame(graph):
    def step():
        graph.queue("first")
        graph.names += ["second"]
        for name in ("third", "fourth"):
            graph.queue(name)
        return graph.queue("last")

    with graph.lines.traced():
        step()
    assert graph.told() == {
        "first": 'graph.queue("first")', "second": 'graph.names += ["second"]',
        "third": "graph.queue(name)", "fourth": "graph.queue(name)",
        "last": 'return graph.queue("last")'}
    assert sys.gettrace() is None


def test_what_a_line_queues_behind_a_call_is_that_lines(graph):
    def inner():
        return graph.queue("in it")

    def step():
        graph.queue("before"), inner(), graph.queue("behind")

    with graph.lines.traced():
        step()
    line = 'graph.queue("before"), inner(), graph.queue("behind")'
    assert graph.told() == {"before": line, "in it": 'return graph.queue("in it")', "behind": line}


def test_frames_of_torch_are_passed_to_the_user_behind_them(graph):
    class Layer(nn.Module):
        def forward(self, x):
            graph.queue("in forward")
            return x

    def step():
        Layer()(torch.ones(1))
        nn.Identity().register_forward_hook(lambda *_: graph.queue("hook"))

    with graph.lines.traced():
        step()
    assert graph.told() == {"in forward": 'graph.queue("in forward")'}
    assert not is_users(nn.__file__) and not is_users(threading.__file__) and is_users(__file__)


def test_what_another_thread_queues_is_of_the_line_that_waits_for_it(graph):
    def step():
        thread = threading.Thread(target=lambda: graph.queue("there"))
        thread.start()
        thread.join()
        graph.queue("here")

    with graph.lines.traced():
        step()
    assert graph.told()["there"] in ("thread.start()", "thread.join()")
    assert graph.told()["here"] == 'graph.queue("here")'


def test_a_step_that_raises_raises_what_it_raised_and_is_traced_no_more(graph):
    def step():
        graph.queue("before")
        raise ValueError("of the user's")

    with pytest.raises(ValueError, match="of the user's"), graph.lines.traced():
        step()
    assert sys.gettrace() is None and graph.told() == {"before": 'graph.queue("before")'}


def queue_one(graph):
    graph.queue("one")


def test_a_fault_of_ours_does_not_reach_the_step(graph):
    graph.lines = EagerLines(lambda: 1 // 0, graph.mark, graph.labels)
    with graph.lines.traced():
        queue_one(graph)
    assert graph.told() == {"one": None}


def test_where_somebody_else_traces_nothing_is_looked_at(graph):
    seen = []

    def other(frame, event, argument):
        seen.append(event)

    sys.settrace(other)
    try:
        with graph.lines.traced():
            assert sys.gettrace() == other
            queue_one(graph)
    finally:
        sys.settrace(None)
    assert "call" in seen and graph.told() == {"one": None}


COUNTED = """
class Counted(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        GRAPH.queue(f"{len(GRAPH.names)} {function}")
        return function(*args, **(kwargs or {}))
"""


def counted(graph):
    """A mode that queues a node an operator, on whatever thread, and has no frame of the user's."""
    names = {"TorchDispatchMode": TorchDispatchMode, "GRAPH": graph, "__name__": "counted"}
    exec(compile(COUNTED, "<counted>", "exec"), names)
    return names["Counted"]()


def test_a_backward_is_of_the_line_that_calls_it_and_the_loss_of_its_own(graph):
    weight = torch.ones(3, requires_grad=True)

    def step():
        loss = (weight * 2).sum()
        loss.backward()

    with graph.lines.traced(), counted(graph):
        step()
    lines = list(graph.told().values())
    assert set(lines) == {"loss = (weight * 2).sum()", "loss.backward()"}
    assert lines.index("loss.backward()") == lines.count("loss = (weight * 2).sum()")


def test_compiled_code_runs_as_it_was_compiled_and_has_its_own_labels(graph):
    layer = nn.Linear(4, 4, bias=False)
    call, x = compiled(lambda x: layer(x).sin()), torch.randn(2, 4)
    with torch.no_grad():
        wanted = call(x)
        compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        notes = AccessNotes(graph.mark, "cpu", labels=graph.labels, eager=graph.lines)

        def step():
            graph.queue("before")
            answer = call(x)
            graph.queue("behind")
            return answer

        with notes.known_calls(), graph.lines.traced():
            answer = step()
    assert torch.equal(answer, wanted)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compilations
    assert graph.told() == {"before": 'graph.queue("before")', "behind": 'graph.queue("behind")'}
    operators = {label.operator for mark in range(graph.marks)
                 if (label := graph.labels.of(mark)) is not None}
    assert operators == {"", "aten::mm"}
