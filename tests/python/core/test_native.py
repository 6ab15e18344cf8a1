# SPDX-License-Identifier: Apache-2.0
"""The C ABI from Python: programs, plans, recordings, launches and traces."""

from __future__ import annotations

import ctypes
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch import errors
from anabranch._core import record as core_record
from anabranch._core.capture import Noted, Work, _notes_of
from anabranch._core.device import Device
from anabranch._core.library import NativeError, last_error, native_error
from anabranch._core.program import (
    KIND_COMPUTE,
    KIND_COPY,
    KIND_FILL,
    KIND_HOST,
    KIND_RECORD_EVENT,
    KIND_SYNCHRONIZE,
    KIND_WAIT_EVENT,
    ORIGIN_PLACED,
    ORIGIN_USER_SYNCHRONISED,
    READ,
    READ_WRITE,
    REPORT_RACE_FLOW,
    REPORT_UNJOINED,
    REPORT_UNRECORDED,
    ROLE_INPUT,
    ROLE_OUTPUT,
    ROLE_TEMPORARY,
    SEVERITY_NOTE,
    SEVERITY_WARNING,
    WRITE,
    Plan,
    ProgramBuilder,
    View,
)
from anabranch._core.record import (
    RegionFunction,
    launch_function,
    new_address_table,
    write_region_error,
)
from anabranch._core.tape import Address, TapeBuilder
from anabranch._core.trace import EVENT_LAUNCH, EVENT_STEP, Trace

pytestmark = [pytest.mark.oldest, pytest.mark.own]
SIZE = 64

ROOT = Path(__file__).parents[3]


def block(byte=0):
    return (ctypes.c_char * SIZE)(*([bytes([byte])] * SIZE))


def addresses(*blocks):
    return [ctypes.addressof(b) for b in blocks]


def launch(recording, *blocks, sizes=None):
    recording.launch(addresses(*blocks), sizes)


def copy_over_two_streams():
    """y = t = x, the second copy on a side stream."""
    builder = ProgramBuilder()
    side = builder.add_stream("side")
    x = builder.add_buffer("x", ROLE_INPUT, SIZE)
    t = builder.add_buffer("t", ROLE_TEMPORARY, SIZE, 64)
    y = builder.add_buffer("y", ROLE_OUTPUT, SIZE)
    builder.copy(0, t, x)
    builder.copy(side, y, t)
    return builder.build()


def region_program(roles, region="work", source="model.py:7"):
    """One compute step that reads all inputs and writes all outputs."""
    builder = ProgramBuilder()
    buffers = [builder.add_buffer(f"b{i}", role, SIZE) for i, role in enumerate(roles)]
    modes = {ROLE_INPUT: READ, ROLE_OUTPUT: WRITE}
    builder.compute(0, region, [(modes[r], b) for r, b in zip(roles, buffers)], source)
    return builder.build()


def record(plan, **regions):
    table = {name: (ctypes.cast(f, ctypes.c_void_p).value, 0) for name, f in regions.items()}
    return core_record.record(plan, Device.host(), table)


def test_a_plan_tells_order_waits_slots_and_memory():
    plan = copy_over_two_streams().make_plan()
    assert plan.order == [0, 1]
    assert plan.waits == [(1, 0)]
    assert plan.exits == [1]
    assert plan.slots == [0, 2]
    assert plan.redundant_waits == []
    assert plan.arena_bytes == plan.arena_lower_bound_bytes == plan.arena_naive_bytes == SIZE
    assert plan.offset(1) == 0
    assert "side" in str(plan)


def test_a_program_tells_its_steps_buffers_and_streams():
    builder = ProgramBuilder()
    side = builder.add_stream("side")
    builder.add_stream("users", ORIGIN_USER_SYNCHRONISED, priority=-1)
    x = builder.add_buffer("x", ROLE_INPUT, SIZE, 16)
    event = builder.add_event("ready")
    builder.compute(0, "work", [(READ_WRITE, View(x, 8, 4, (2, 3), (16, 4)))], "model.py:7")
    builder.fill(0, x, 9)
    builder.record_event(0, event)
    builder.wait_event(side, event)
    builder.host(side, "call", [(READ, x)])
    builder.synchronize(side)
    program = builder.build()
    step = program.steps[0]
    assert (step.name, step.source, step.access_count) == (b"work", b"model.py:7", 1)
    assert [s.kind for s in program.steps] == [
        KIND_COMPUTE, KIND_FILL, KIND_RECORD_EVENT,
        KIND_WAIT_EVENT, KIND_HOST, KIND_SYNCHRONIZE]
    assert [s.stream for s in program.steps] == [0, 0, 0, side, side, side]
    buffer = program.buffers[0]
    assert (buffer.name, buffer.role, buffer.size_bytes, buffer.alignment) == (
        b"x", ROLE_INPUT, SIZE, 16)
    assert program.streams[side] == "side"
    assert program.origins == [ORIGIN_PLACED, ORIGIN_PLACED,
                               ORIGIN_USER_SYNCHRONISED]
    assert program.priorities == [0, 0, -1]


def unsynchronised():
    """A stream of the user's reads what the ambient one writes, and neither waits."""
    builder = ProgramBuilder()
    users = builder.add_stream("A", ORIGIN_USER_SYNCHRONISED)
    h = builder.add_buffer("h", ROLE_OUTPUT, SIZE)
    builder.compute(0, "mm", [(WRITE, h)], "model.py:38")
    builder.compute(users, "add", [(READ, h)], "model.py:41")
    return builder.build()


def test_a_program_tells_what_the_users_syncs_leave_open():
    flow, unjoined = unsynchronised().find_reports()
    assert flow == (REPORT_RACE_FLOW, SEVERITY_WARNING, 0, 1, 0, 0, SIZE,
                    flow.message)
    assert "Remedy: A.wait_stream(ambient) before line 41." in flow.message
    assert unjoined[:5] == (REPORT_UNJOINED, SEVERITY_NOTE, 1, None, None)
    assert copy_over_two_streams().find_reports() == []


def test_a_wait_for_an_event_that_was_never_recorded_is_told_with_its_line():
    builder = ProgramBuilder()
    users = builder.add_stream("A", ORIGIN_USER_SYNCHRONISED)
    builder.wait_event(users, builder.add_event("ready"), "model.py:7")
    report, = builder.build().find_reports()
    assert (report.kind, report.first, report.second) == (REPORT_UNRECORDED, None, 0)
    assert "`wait_event` (model.py:7, stream A) waits for event `ready`" in report.message


def test_a_strict_plan_refuses_what_the_users_syncs_leave_open():
    program = unsynchronised()
    assert program.make_plan().waits == [(1, 0)]
    with pytest.raises(NativeError, match="race-flow: `add` .*E0203") as error:
        program.make_plan(strict=True)
    assert error.value.code == 203


def test_views_keep_apart_what_does_not_overlap():
    builder = ProgramBuilder()
    side = builder.add_stream("side")
    y = builder.add_buffer("y", ROLE_OUTPUT, SIZE)
    builder.fill(0, View(y, 0, 1, (32,), (2,)), 1)
    builder.fill(side, View(y, 1, 1, (32,), (2,)), 2)
    plan = builder.build().make_plan()
    assert plan.waits == []
    out = block()
    launch(record(plan), out)
    assert out.raw == b"\1\2" * 32


def test_regions_are_numbered_by_step():
    program = copy_over_two_streams()
    assert program.find_regions() == [0, 1]


def test_a_launch_follows_its_addresses():
    recording = record(copy_over_two_streams().make_plan())
    first, second = block(), block()
    launch(recording, block(1), first)
    launch(recording, block(2), second)
    assert first.raw == block(1).raw
    assert second.raw == block(2).raw


def test_the_hot_launch_function_takes_a_table():
    recording = record(copy_over_two_streams().make_plan())
    source, out = block(3), block()
    table = new_address_table(2)
    table[:] = addresses(source, out)
    assert launch_function(recording.handle, table, 2) == 0
    assert out.raw == source.raw
    assert launch_function(recording.handle, table, 1) == 402
    assert last_error().code == 402


def test_a_launch_of_more_slots_than_fit_on_the_stack():
    roles = [ROLE_INPUT] * 300 + [ROLE_OUTPUT]
    seen = []

    def run(context, call):
        seen.append(call.contents.buffers[:call.contents.buffer_count])
        return 0

    function = RegionFunction(run)
    recording = record(region_program(roles).make_plan(), work=function)
    blocks = [block() for _ in roles]
    launch(recording, *blocks)
    assert seen == [addresses(*blocks)]


@pytest.mark.parametrize("count", [0, 1, 3, 400])
def test_a_launch_with_another_number_of_addresses_is_refused(count):
    recording = record(copy_over_two_streams().make_plan())
    with pytest.raises(NativeError, match=f"{count} bindings .* 2 slots") as e:
        launch(recording, *(block() for _ in range(count)))
    assert e.value.code == 402


def test_a_launch_with_sizes_refuses_a_small_buffer():
    recording = record(copy_over_two_streams().make_plan())
    out = block()
    launch(recording, block(5), out, sizes=[SIZE, SIZE])
    with pytest.raises(NativeError, match="'y' .* 63 bytes"):
        launch(recording, block(6), out, sizes=[SIZE, SIZE - 1])
    assert out.raw == block(5).raw


def test_a_failing_region_is_an_error_with_its_words():
    def run(context, call):
        write_region_error(call, "the kettle is empty")
        return 3

    function = RegionFunction(run)
    recording = record(region_program([ROLE_OUTPUT]).make_plan(), work=function)
    out = block()
    with pytest.raises(NativeError, match="model.py:7.*the kettle is empty") as e:
        launch(recording, out)
    assert e.value.code == 403


def test_a_region_that_was_not_given_refuses_the_recording():
    with pytest.raises(NativeError, match="work") as e:
        record(region_program([ROLE_OUTPUT]).make_plan())
    assert e.value.code == 301


def test_a_program_that_breaks_a_rule_names_it():
    builder = ProgramBuilder()
    t = builder.add_buffer("early", ROLE_TEMPORARY, SIZE)
    builder.compute(5, "work", [(READ, t)])
    with pytest.raises(NativeError, match="early"):
        builder.build()


def test_errors_belong_to_their_thread():
    recording = record(copy_over_two_streams().make_plan())
    codes = []

    def work():
        codes.append(last_error().code)

    with pytest.raises(NativeError):
        launch(recording)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0]
    assert last_error().code == 402


def test_plans_go_through_files_and_bytes(tmp_path):
    plan = copy_over_two_streams().make_plan()
    path = tmp_path / "copy-é.plan"
    plan.write(path)
    assert path.read_bytes() == plan.to_bytes()
    for other in (Plan.read(path), Plan.from_bytes(plan.to_bytes())):
        assert other.waits == plan.waits
        assert [b.name for b in other.program.buffers] == [b"x", b"t", b"y"]
    with pytest.raises(NativeError):
        Plan.from_bytes(plan.to_bytes()[:-9])
    with pytest.raises(NativeError, match="nowhere.plan"):
        Plan.read(tmp_path / "nowhere.plan")


@pytest.mark.parametrize("code, family", [
    (101, errors.ProgramError), (203, errors.PlanError), (308, errors.RecordError),
    (402, errors.LaunchError), (501, errors.PlanFileError), (9901, errors.AnabranchError)])
def test_a_failure_of_the_core_is_of_the_documented_class_of_its_code(code, family):
    error = native_error(code, "act: no.")
    assert isinstance(error, family) and isinstance(error, NativeError)
    assert (type(error).__module__, type(error).__name__) == ("anabranch.errors", family.__name__)
    error.add_note("while it was tested")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is family and str(again) == str(error) and again.code == code
    assert again.__notes__ == ["while it was tested"]


@pytest.mark.parametrize("act, family", [
    (lambda: Plan.read("/no/such.plan"), errors.PlanFileError),
    (lambda: Plan.from_bytes(b"no plan"), errors.PlanFileError),
    (lambda: copy_over_two_streams().make_plan().write("/no/such/folder.plan"),
     errors.PlanFileError)])
def test_what_the_core_refuses_is_caught_by_its_documented_class(act, family):
    with pytest.raises(family):
        act()


def test_a_trace_tells_what_ran():
    plan = copy_over_two_streams().make_plan()
    recording = record(plan)
    trace = Trace()
    recording.attach_trace(trace)
    launch(recording, block(1), block())
    kinds = [e.kind for e in trace.events]
    assert kinds.count(EVENT_STEP) == 2
    assert kinds.count(EVENT_LAUNCH) == 1
    assert len(trace) == len(kinds) and trace.dropped == 0
    assert all(e.begin_ns <= e.end_ns for e in trace.events)
    assert '"traceEvents"' in trace.chrome_json(plan)
    assert "side" in trace.dump(plan)
    trace.clear()
    assert len(trace) == 0
    recording.attach_trace(None)
    launch(recording, block(1), block())
    assert len(trace) == 0


def test_a_recording_runs_a_tape():
    got = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
        lambda *words: got.append(words))
    builder = TapeBuilder()
    builder.call("keep", ctypes.cast(function, ctypes.c_void_p).value,
                 [Address(0, 4), 11], fallible=False)
    tape = builder.finish()
    plan = region_program([ROLE_OUTPUT]).make_plan()
    recording = core_record.record(plan, Device.host(),
                                   {"work": (tape.region_function, tape.handle_value)})
    for _ in range(2):
        out = block()
        launch(recording, out)
        assert got.pop() == (ctypes.addressof(out) + 4, 11)


def test_handles_are_given_back_once():
    builder = ProgramBuilder()
    builder.close()
    builder.close()
    program = copy_over_two_streams()
    gone = weakref.ref(program)
    plan = program.make_plan()
    del program
    gc.collect()
    assert gone() is None
    assert [s.kind for s in plan.program.steps] == [KIND_COPY] * 2


def test_a_library_of_another_version_is_refused(run_python):
    import _ctypes  # some shared library that is not ours

    result = run_python("import anabranch._core.library", ANABRANCH_LIBRARY_PATH=_ctypes.__file__)
    assert "LibraryMissing" in result.stderr and "[E0610]" in result.stderr


def test_a_missing_library_tells_where_it_was_looked_for(run_python, tmp_path):
    path = tmp_path / "lib.so"
    result = run_python("import anabranch._core.library", ANABRANCH_LIBRARY_PATH=str(path))
    assert "LibraryMissing" in result.stderr and "[E0606]" in result.stderr
    assert str(path) in result.stderr


def test_the_binding_is_made_of_the_header():
    """All structures and prototypes. What C's compiler makes of their sizes is ctypes' to know."""
    done = subprocess.run([sys.executable, ROOT / "scripts/make_abi.py", "--check"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text, what", [
    ("ANABRANCH_C int32_t anabranch_one(float x);", "of no known type: float"),
    ("typedef union AnabranchOne { int32_t x; } AnabranchOne;", "not understood: typedef union"),
    ("typedef struct AnabranchOne { float x; } AnabranchOne;", "of no known type: float")])
def test_a_header_that_the_binding_does_not_understand_is_refused(text, what, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import make_abi

    with pytest.raises(SystemExit, match=what):
        make_abi.written(make_abi.Header(text))


def test_notes_of_a_capture_are_handed_over_as_they_were_taken():
    works = [Work(3, ((64, True), (128, False)), True),
             Work(5, ((192, True),), False, independent=True),
             Work(6, (), False, in_turn=True)]
    marks = SimpleNamespace(handle=ctypes.c_void_p(7))
    notes = _notes_of(Noted(marks, True, 2, works))
    assert (notes.marks, notes.of_second, notes.blocks_before) == (7, 1, 2)
    given = [notes.works[i] for i in range(notes.work_count)]
    assert [(work.mark, work.uses, work.has_scratch, work.independent, work.in_turn)
            for work in given] == [(3, 2, 1, 0, 0), (5, 1, 0, 1, 0), (6, 0, 0, 0, 1)]
    uses = [notes.uses[i] for i in range(notes.use_count)]
    assert [(use.address, use.writes) for use in uses] == [(64, 1), (128, 0), (192, 1)]
