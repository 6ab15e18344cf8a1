# SPDX-License-Identifier: Apache-2.0
"""Compiled code over torch's own streams, by the numbers of the acceptance list: whoever waits
outside finds everything done, also with long work at the head of each stream. What a call leaves by
itself is in test_acceptance.py. And how the streams are tied to a graph's ends, call after call."""

from __future__ import annotations

import threading

import pytest
import torch
from compare import compiled
from recordings import normal

from anabranch._compile.user_streams import ties

ROUNDS = 20
A, B, C = (torch.cuda.Stream() for _ in range(3)) if torch.cuda.is_available() else (None,) * 3


@pytest.fixture(params=["", "D", "A", "B"], ids=lambda name: f"slow {name}" if name else "even")
def slow(request):
    """Queues long work at the head of one stream."""
    side = {"D": None, "A": A, "B": B}
    ballast = normal(0, 2048, 2048) / 2048

    def queue():
        if not request.param:
            return
        stream = side[request.param] or torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = ballast
            for _ in range(40):
                y = y @ ballast
            y.record_stream(stream)

    return queue


def rounds(call, wanted, make, slow, look=lambda found: found):
    """Many calls, looked at only through ``look``, which waits as a user would."""
    for i in range(ROUNDS):
        mine, theirs = make(i), make(i)
        torch.cuda.synchronize()
        slow()
        found = look((call(*mine), mine))
        torch.cuda.synchronize()
        expected = (wanted(*theirs), theirs)
        torch.cuda.synchronize()
        for a, b in zip(torch.utils._pytree.tree_leaves(found),
                        torch.utils._pytree.tree_leaves(expected), strict=True):
            assert torch.equal(a, b), i


def square(i):
    return (normal(i, 1000, 1000),)


def test_t1_a_write_to_an_input_is_covered_by_the_users_join(slow):
    def function(x, small):
        with torch.cuda.stream(A):
            x += 1
        torch.cuda.current_stream().wait_stream(A)
        return small + 1

    def plain(x, small):
        x += 1
        return small + 1

    rounds(compiled(function), plain, lambda i: (torch.zeros(1 << 26, device="cuda"), normal(i, 4)),
           slow, lambda found: (found[0], tuple(t.clone() for t in found[1])))


@pytest.mark.parametrize("as_stream", [False, True])
def test_t2_an_event_after_a_write_to_an_input_covers_it(slow, as_stream):
    event = torch.Event("cuda")

    def function(x, small):
        with torch.cuda.stream(A):
            x += 1
            event.record(A)
        return small * 2

    def look(found):
        """On C, which waits for the event or the stream alone."""
        C.wait_stream(A) if as_stream else C.wait_event(event)
        with torch.cuda.stream(C):
            seen = found[1][0].clone()
        torch.cuda.current_stream().wait_stream(C)
        return found[0], (seen, found[1][1])

    def plain(x, small):
        x += 1
        return small * 2

    rounds(compiled(function), plain, lambda i: (*square(i), normal(i + 100, 4)), slow, look)


def test_t4_a_host_that_waits_inside_has_waited(slow):
    event = torch.Event("cuda")

    def function(x):
        with torch.cuda.stream(A):
            a = x @ x
            event.record(A)
        A.synchronize()
        with torch.cuda.stream(B):
            B.wait_event(event)
            return a * 2

    rounds(compiled(function), lambda x: (x @ x) * 2, square, slow)
    compiled(function)(*square(0))
    assert event.query()


def test_t12_the_ambient_stream_is_that_of_the_call(slow):
    first, second = torch.Event("cuda"), torch.Event("cuda")

    def function(x, y):
        first.record(torch.cuda.current_stream())
        first.wait(A)
        with torch.cuda.stream(A):
            z = 2 * x
            second.record(A)
        second.wait(torch.cuda.current_stream())
        return z + y

    call = compiled(function)

    def under_another(x, y):
        C.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(C):
            z = call(x, y)
        torch.cuda.current_stream().wait_stream(C)
        return z

    for way in (call, under_another):
        rounds(way, lambda x, y: 2 * x + y, lambda i: (*square(i), *square(i + 50)), slow)


def test_t18_t30_t31_gradients_are_ready_on_the_ambient_stream(slow):
    weight = torch.nn.Parameter(normal(7, 1000, 1000) / 30)

    def function(x):
        A.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(A):
            h = x @ weight
        torch.cuda.current_stream().wait_stream(A)
        return h.relu()

    call = compiled(function)

    def gradients(forward):
        def run(x):
            weight.grad = None
            forward(x).backward(x)  # what comes in is made on the ambient stream
            return weight.grad.clone()

        return run

    rounds(gradients(call), gradients(lambda x: (x @ weight).relu()), square, slow)


MANY = 100
A_WHILE = 1_000_000  # cycles of a stream that does nothing else


def add_on_a(x):
    with torch.cuda.stream(A):
        return x + 1


def add_on_b(x):
    with torch.cuda.stream(B):
        return x + 1


def fill_late(x, value):
    """On the current stream, behind a kernel that takes long."""
    torch.cuda._sleep(A_WHILE)
    x.fill_(value)


@pytest.mark.parametrize("library", [True, False], ids=["library", "torch"])
@pytest.mark.parametrize("record", [True, False])
def test_a_call_is_ordered_with_what_its_stream_has_before_and_behind_it(monkeypatch, library,
                                                                         record):
    """Two graphs and two streams in turn, nothing but the ties between them. Each fourth pair of
    calls finds its stream idle."""
    if library:
        assert ties._library_ties(ties._CUDA, torch.cuda.current_device()) is not None
    else:
        monkeypatch.setattr(ties, "_library_ties", lambda kind, device: None)
    turns = [(stream, compiled(function, options={"record": record}))
             for stream, function in ((A, add_on_a), (B, add_on_b))]
    x, results, seen = torch.zeros(1 << 16, device="cuda"), [], []
    for i in range(MANY):
        stream, call = turns[i % 2]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            fill_late(x, i)
        if i % 8 < 2:
            stream.synchronize()
        results.append(call(x))
        with torch.cuda.stream(stream):
            seen.append(results[-1].clone())
    torch.cuda.synchronize()
    for i, found in enumerate(seen):
        assert torch.equal(found, torch.full_like(found, i + 1)), i


def test_threads_that_call_one_graph_wait_for_their_own_work():
    call = compiled(add_on_a, options={"record": False})
    call(torch.zeros(1 << 16, device="cuda"))
    wrong = []

    def work(first):
        with torch.cuda.stream(torch.cuda.Stream()):
            x, results = torch.zeros(1 << 16, device="cuda"), []
            for i in range(first, first + MANY):
                fill_late(x, i)
                results.append(call(x))
            torch.cuda.current_stream().synchronize()
        wrong.extend(first + i for i, found in enumerate(results)
                     if not torch.equal(found, torch.full_like(found, first + i + 1)))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_capture_is_tied_to_its_own_streams_and_to_no_other():
    def function(x):
        with torch.cuda.stream(A):
            a = x + 1
        with torch.cuda.stream(B):
            return a * 2

    call, x = compiled(function), torch.zeros(1 << 16, device="cuda")
    C.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(C):
        for _ in range(3):
            call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=C):
        A.wait_stream(C)
        with torch.cuda.stream(A):
            x += 1
        with torch.cuda.stream(B):
            torch.cuda._sleep(A_WHILE)  # outside of the capture, and busy
        y = call(x)
        with torch.cuda.stream(A):
            z = y + x
        C.wait_stream(A)
    for i in range(3):
        x.fill_(i)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x, torch.full_like(x, i + 1))
        assert torch.equal(y, (x + 1) * 2) and torch.equal(z, y + x), i
