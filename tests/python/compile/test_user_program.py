# SPDX-License-Identifier: Apache-2.0
"""What is told of compiled code over torch's streams that lacks a sync, and that nothing is told of
code that lacks none. By the numbers of the acceptance list where it has the program.

D stands for the stream that is current when the code is called: torch has no current one on a
machine without a GPU.
"""

from __future__ import annotations

import pytest
import torch
from compare import compiled

from anabranch import _compat, errors
from anabranch._compile.user_streams import check, extract
from anabranch._core.program import SEVERITY_ERROR, SEVERITY_NOTE, SEVERITY_WARNING

pytestmark = [pytest.mark.own, pytest.mark.oldest]

A, B, C, D = (torch.Stream(device="cpu") for _ in range(4))
EVENT, OTHER = torch.Event(device="cpu"), torch.Event(device="cpu")
KINDS = ("race-flow", "race-mutation", "inexact", "unjoined", "unrecorded")


def reports(function, *inputs, dynamic=False):
    """The kinds of what is told of a function, in order, and the texts."""
    found = []

    def backend(gm, example_inputs):
        finder = extract._Finder(gm)
        for node in gm.graph.nodes:
            finder.look_at(node)
        numbers = {*finder.ties.streams}
        ambient = {i for i in numbers if _compat.object_of_graph(i) is D}
        program = check._ProgramWalk(gm, finder.syncs, ambient).program()
        found.extend(program.find_reports())
        extract.take_out(gm)
        return gm.forward

    torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)(*inputs)
    return [KINDS[report.kind] for report in found], [report.message for report in found]


X = torch.ones(8, 8)


def join(x):
    z = x + x
    A.wait_stream(D)
    with A:
        w = z * 2
    D.wait_stream(A)
    return w + 1


def events(x):
    EVENT.record(D)
    EVENT.wait(A)
    with A:
        w = x * 2
        OTHER.record(A)
    OTHER.wait(D)
    return w + x


def three_in_a_row(x):
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


def diamond(x):
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


def one_event_three_times(x):
    A.wait_stream(D)
    for _ in range(3):
        with A:
            x = x * 2
            EVENT.record(A)
        EVENT.wait(D)
        x = x + 1
        A.wait_stream(D)
    D.wait_stream(A)
    return x


def the_host_waits(x):
    A.wait_stream(D)
    with A:
        a = x + 1
    A.synchronize()
    return a * 2


def columns_apart(x):
    y = x * 2
    A.wait_stream(D)
    with A:
        y[:, ::2].add_(1)
    y[:, 1::2].add_(2)
    D.wait_stream(A)
    return y


def write_an_input(x):
    A.wait_stream(D)
    with A:
        x.add_(1)
    D.wait_stream(A)
    return x.sum()


fixed_or_not = pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "any sizes"])


@fixed_or_not
@pytest.mark.parametrize("function", [
    join, events, three_in_a_row, diamond, one_event_three_times, the_host_waits, columns_apart,
    write_an_input])
def test_nothing_is_told_of_code_that_lacks_no_sync(function, dynamic):
    kinds, texts = reports(function, X.clone(), dynamic=dynamic)
    assert kinds == [], "\n".join(texts)


def lacks_the_join_at_the_end(x):
    A.wait_stream(D)
    with A:
        a = x * 2
    return a


def lacks_the_join_at_the_begin(x):
    with A:
        a = x * 2
    D.wait_stream(A)
    return a


def reads_too_early(x):
    A.wait_stream(D)
    with A:
        a = x * 2
    b = a + 1
    D.wait_stream(A)
    return b


def changes_what_another_reads(x):  # T6
    h = x * 2
    A.wait_stream(D)
    h.add_(1)
    with A:
        a = h * 3
    D.wait_stream(A)
    return a, h


def views_share_bytes(x):
    y = x * 2
    A.wait_stream(D)
    with A:
        y[2:5].add_(1)
    y[4:].add_(2)
    D.wait_stream(A)
    return y


def joins_too_early(x):  # T5, its join before the work
    D.wait_stream(A)
    A.wait_stream(D)
    with A:
        a = x * 2
    return a + 1


@fixed_or_not
@pytest.mark.parametrize(("function", "wanted"), [
    (lacks_the_join_at_the_end, ["unjoined"]), (lacks_the_join_at_the_begin, ["race-flow"]),
    (reads_too_early, ["race-flow"]), (changes_what_another_reads, ["race-mutation"]),
    (views_share_bytes, ["race-mutation"]), (joins_too_early, ["race-flow"])])
def test_each_missing_sync_is_told_once(function, wanted, dynamic):
    kinds, texts = reports(function, X.clone(), dynamic=dynamic)
    assert kinds == wanted, "\n".join(texts)


def test_a_report_names_operators_lines_streams_and_the_way_out():
    _, (text,) = reports(reads_too_early, X)
    line = reads_too_early.__code__.co_firstlineno
    assert f"`add` (test_user_program.py:{line + 4}, stream ambient)" in text
    assert f"`mul` (test_user_program.py:{line + 3}, stream stream" in text
    assert f"before line {line + 4}" in text


def test_an_order_that_nobody_knows_is_refused_and_others_are_told(caplog):
    with pytest.raises(Exception, match="race-mutation") as raised:
        compiled(changes_what_another_reads)(X)
    cause = getattr(raised.value, "inner_exception", raised.value)
    assert isinstance(cause, errors.PlanError) and cause.code == 203
    torch.compiler.reset()
    with caplog.at_level("WARNING", "anabranch"):
        found = compiled(reads_too_early)(X)
    assert torch.equal(found, X * 2 + 1) and "race-flow" in caplog.text
    torch.compiler.reset()
    with pytest.raises(Exception, match="race-flow"):
        compiled(reads_too_early, options={"strict": True})(X)


def test_sizes_that_are_not_fixed_are_those_of_the_example():
    _, (text,) = reports(lambda x: reads_too_early(x) * x.shape[0], X[:6].clone(), dynamic=True)
    assert f"bytes 0..{6 * 8 * 4}" in text


def test_a_graph_that_cannot_be_followed_is_compiled_all_the_same(monkeypatch, caplog):
    monkeypatch.setattr(check._ProgramWalk, "program",
                        lambda self: (_ for _ in ()).throw(ValueError("no")))
    with caplog.at_level("INFO", "anabranch"):
        assert torch.equal(compiled(join)(X), X * 4 + 1)
    assert "streams are not checked: ValueError: no" in caplog.text


def test_severities_are_those_of_the_core():
    assert (SEVERITY_NOTE, SEVERITY_WARNING, SEVERITY_ERROR) == (0, 1, 2)
