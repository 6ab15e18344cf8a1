# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams that lack a sync, and exactly what is told of them: those of the
acceptance list, by its numbers, and each correct program of stream_programs less one line of syncs.

An oracle by brute force says the same of every line (stream_reports).
"""

from __future__ import annotations

import dataclasses

import pytest
from compare import compiled
from stream_places import Program, host
from stream_programs import PROGRAMS
from stream_reports import check_graphs

pytestmark = [pytest.mark.own, pytest.mark.oldest]

RACY: list[tuple[Program, list[str]]] = []


def told(*texts):
    def add(function):
        RACY.append((Program(function, frozenset(), has_gradients=False), list(texts)))
        return function

    return add


@told("race-flow: clone, then mm")
def t3_one_aligned_copy_for_two_streams(x, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        aligned = x.view(-1)[1:50].view(7, 7).clone()
        p = aligned @ w[:7, :7]
    with B:
        q = aligned @ w[1:, 1:]
    D.wait_stream(A)
    D.wait_stream(B)
    return p + q


@told("race-flow: mul, then add", "unjoined: add")
def t5_no_joins_at_all(x, A):
    a = x * 2
    with A:
        b = a + 1
    return b


@told("race-mutation: add_, then mul")
def t6_changed_at_home_while_read_aside(x, A, D):
    h = x * 2
    A.wait_stream(D)
    h.add_(1)
    with A:
        a = h * 3
    D.wait_stream(A)
    return a, h


@told("race-flow: the caller, then sub")
def t24_an_input_is_read_aside_at_once(x, A, D):
    with A:
        a = x - 1
    D.wait_stream(A)
    return a


@told("race-mutation: mm, then zero_")
def t25_reused_while_a_view_is_read_aside(x, w, A, D):
    t = x * 2
    view = t[1:].t()
    A.wait_stream(D)
    with A:
        a = view @ w[:7]
    t.zero_()  # as what takes its place would
    D.wait_stream(A)
    return a + t


@told("race-mutation: mm, then copy_")
def t26_reused_behind_the_last_use_at_home(x, w, A, D):
    t = x * 2
    A.wait_stream(D)
    with A:
        a = t @ w
    home = t + 1
    t.copy_(x)
    D.wait_stream(A)
    return a + home + t


@told("race-mutation: mm, then zero_")
def t27_reused_when_one_of_two_streams_is_done(x, w, A, B, D):
    t = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = t @ w
    with B:
        b = t + 1
    D.wait_stream(B)
    t.zero_()
    D.wait_stream(A)
    return a + b + t


@told("race-mutation: mm, then zero_", "race-mutation: add, then zero_")
def t28_reused_when_neither_stream_is_done(x, w, A, B, D):
    t = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = t @ w
    with B:
        b = t + 1
    t.zero_()
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b + t


@told("race-flow: the caller, then mm")
def t30_a_gradient_that_comes_in_is_used_aside_at_once(x, w, A, D):
    with A:
        gradient = x @ w.t()
    D.wait_stream(A)
    return gradient


@told("unjoined: mm")
def t31_a_gradient_goes_out_from_aside(x, w, A, D):
    A.wait_stream(D)
    with A:
        return x @ w.t()


@told("race-mutation: mul, then add_")
def t33_changed_on_another_stream_than_read(x, A, B, D):
    t = x - 1
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = t * 3
    with B:
        t.add_(1)
    D.wait_stream(A)
    D.wait_stream(B)
    return a + t


@told("race-mutation: add_, then clone")
def t34_weights_are_copied_out_while_they_are_updated(x, w, A, D):
    A.wait_stream(D)
    w.add_(x)
    with A:
        copied = w.clone()
    D.wait_stream(A)
    return copied


@told("race-mutation: add, then zero_")
def t35_a_reloaded_buffer_is_reused_aside(x, y, A, D):
    A.wait_stream(D)
    with A:
        t = y * 1
    D.wait_stream(A)
    used = t + x
    with A:
        t.zero_()
    D.wait_stream(A)
    return used - t


@told("race-mutation: mul, then copy_")
def t36_reloaded_into_what_is_still_read(x, y, A, D):
    t = x + 1
    A.wait_stream(D)
    used = t * 2
    with A:
        t.copy_(y)
    D.wait_stream(A)
    return used + t


@told("race-mutation: mm, then fill_")
def t37_weights_are_dropped_by_the_stream_that_moved_them(x, w, A, D):
    A.wait_stream(D)
    with A:
        moved = w.clone()
    D.wait_stream(A)
    first = x @ moved
    with A:
        moved.fill_(7)
    D.wait_stream(A)
    return first - moved


@told("race-mutation: copy_, then add", "race-mutation: add, then copy_")
def t38_loaded_twice_without_a_join(x, y, w, A, D):
    buffer = w * 1
    A.wait_stream(D)
    with A:
        buffer.copy_(y)
    first = x + buffer
    with A:
        buffer.copy_(x)
    D.wait_stream(A)
    return first + buffer


@told("unjoined: sync")
def forked_once_more_at_the_end(x, A, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    D.wait_stream(A)
    A.wait_stream(D)
    return a


@told("unrecorded: sync", "race-flow: the caller, then add")
def an_event_that_nothing_records_orders_nothing(x, A, D, new_event):
    event = new_event()
    event.wait(A)
    with A:
        a = x + 1
    D.wait_stream(A)
    return a


LESS = {
    "a_stream_made_inside": ("side.wait_stream(D)", ["race-flow: the caller, then mul"]),
    "an_event_made_inside": ("event.record(A)", ["unrecorded: sync", "unjoined: mul"]),
    "streams_of_a_table": ("stream.wait_stream(D)", [
        "race-flow: the caller, then mul",
        "race-flow: the caller, then mul"]),
    "a_helper_takes_streams": (
        "home.wait_stream(stream)", ["race-flow: relu, then mul", "unjoined: mul"]),
    "the_current_stream_of_a_context": ("E.record(cuda.current_stream())", ["unjoined: add"]),
    "the_current_stream_is_entered": ("D.wait_stream(A)", ["race-flow: mul, then sub"]),
    "one_stream_by_two_names": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "work_goes_on_behind_a_context_that_is_left_early": (
        "D.wait_stream(A)", ["race-flow: add, then mul"]),
    "an_intermediate_is_told_of_its_stream": ("A.wait_stream(D)", ["race-flow: add, then mul"]),
    "an_input_is_told_of_its_stream": ("D.wait_stream(A)", ["unjoined: mul"]),
    "dropped_after_use_on_several_streams": ("D.wait_stream(A)", ["race-flow: mm, then add"]),
    "one_event_chains_four_streams": ("E.wait(D)", ["unjoined: mul"]),
    "used_aside_then_at_home_then_elsewhere": ("A.wait_stream(D)", ["race-flow: sub, then mm"]),
    "columns_apart_are_changed_beside_each_other": ("D.wait_stream(A)", ["unjoined: add_"]),
    "rows_apart_are_written_beside_each_other": (
        "D.wait_stream(A)", ["race-mutation: copy_, then add"]),
    "a_view_is_read_aside": ("D.wait_stream(A)", ["race-flow: sum, then mul"]),
    "views_of_an_input_on_two_streams": ("A.wait_stream(D)", ["race-flow: the caller, then mm"]),
    "broadcast_aside": ("D.wait_stream(A)", ["unjoined: sub"]),
    "a_misaligned_view_on_two_streams": ("D.wait_stream(A)", ["race-flow: mm, then add"]),
    "changed_aside": ("D.wait_stream(A)", ["race-mutation: add_, then mul"]),
    "changed_when_its_reader_is_done": ("A.wait_stream(D)", ["race-flow: mul, then add"]),
    "changed_on_two_streams_in_turn": ("E.record(A)", ["race-mutation: mul_, then sub_"]),
    "overwritten_aside": ("A.wait_stream(D)", ["race-mutation: add, then copy_"]),
    "zeroed_then_added_to": ("D.wait_stream(B)", ["unjoined: add_"]),
    "an_input_is_changed_aside": ("A.wait_stream(D)", ["race-flow: the caller, then add_"]),
    "an_input_is_changed_through_a_view": ("E.record(A)", ["race-mutation: add_, then mul"]),
    "a_cache_is_filled_then_read_by_branches": ("E.wait(A)", ["race-mutation: copy_, then mm"]),
    "an_input_is_read_aside_then_changed_at_home": (
        "D.wait_stream(A)", ["race-mutation: mul, then sub_"]),
    "gradients_of_one_input_from_two_streams": (
        "A.wait_stream(D)", ["race-flow: the caller, then mul"]),
    "all_of_the_forward_aside": ("D.wait_stream(A)", ["unjoined: relu"]),
    "a_weight_of_two_streams": ("D.wait_stream(A)", ["race-flow: relu, then sub"]),
    "what_is_saved_comes_from_two_streams": ("D.wait_stream(B)", ["race-flow: mul, then mul"]),
    "detached_aside": ("A.wait_stream(D)", ["race-flow: mul, then gt"]),
    "one_input_used_three_times": ("B.wait_stream(D)", ["race-flow: the caller, then mul"]),
    "joined_forth_and_back": ("A.wait_stream(D)", ["race-flow: add, then mul"]),
    "events_forth_and_back": ("F.wait(D)", ["race-flow: mul, then add"]),
    "streams_wait_for_events": ("E.record(D)", ["race-flow: sub, then mul"]),
    "streams_record_events": ("A.wait_event(E)", ["race-flow: add, then mul"]),
    "recorded_and_awaited_under_contexts": ("E.wait()", ["race-flow: mul, then add"]),
    "side_streams_join_each_other": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "entered_by_name_of_the_device": ("B.wait_stream(A)", ["race-flow: mul, then sub"]),
    "the_current_stream_is_asked_for": ("current().wait_stream(A)", ["race-flow: add, then mul"]),
    "a_record_covers_what_lies_before_an_earlier_one": ("F.wait(B)", ["race-flow: mm, then relu"]),
    "the_last_record_counts": ("E.record(A)", ["race-flow: add, then mul"]),
    "a_second_wait_adds_nothing": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "waits_without_work": ("D.wait_stream(B)", ["unjoined: sync"]),
    "two_streams_wait_for_one_event": ("E.wait(A)", ["race-flow: mul, then add"]),
    "an_event_of_before_is_awaited": ("D.wait_stream(A)", ["unjoined: add"]),
    "diamond": ("A.wait_stream(D)", ["race-flow: mul, then add"]),
    "diamond_joined_aside": ("D.wait_stream(C)", ["unjoined: sub"]),
    "fan_out_to_three": ("stream.wait_stream(D)", [
        "race-flow: mm, then mul",
        "race-flow: mm, then mul",
        "race-flow: mm, then mul"]),
    "to_a_side_and_back_and_there_again": (
        "D.wait_stream(A)", ["race-flow: add, then mul", "unjoined: sub"]),
    "three_in_a_row": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "three_turns_with_one_event": ("E.wait(D)", [
        "race-flow: mul, then add",
        "race-flow: mul, then add",
        "race-flow: mul, then add"]),
    "nested_contexts": (
        "D.wait_stream(A)", ["race-flow: add, then add", "race-flow: sub, then add"]),
    "ping_pong": ("E.record(A)", ["race-flow: relu, then sub", "race-flow: relu, then sub"]),
    "a_pipeline_of_two_stages": ("A.wait_stream(D)", ["race-flow: the caller, then mul"]),
    "two_rounds_of_forks": (
        "B.wait_stream(D)", ["race-flow: the caller, then add", "race-flow: sub, then add"]),
    "a_side_stream_forks": ("A.wait_stream(C)", ["race-flow: sub, then mul"]),
    "unrelated_work_beside_each_other": ("D.wait_stream(B)", ["unjoined: add"]),
    "two_chains_and_a_join": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "a_chain_at_home_then_one_aside": ("D.wait_stream(A)", ["unjoined: add"]),
    "four_pointwise_on_one_side": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "equal_work_on_both_sides": ("D.wait_stream(B)", ["unjoined: add"]),
    "every_other_column_is_copied_elsewhere": ("B.wait_stream(A)", ["race-flow: add, then clone"]),
    "a_named_stream_within_torchs": ("D.wait_stream(A)", ["unjoined: sub"]),
    "a_named_stream_beside_torchs": ("D.wait_stream(A)", ["race-flow: mm, then mul"]),
    "a_reduction_aside": ("D.wait_stream(A)", ["race-flow: sum, then sub"]),
    "products_on_two_streams": ("D.wait_stream(A)", ["race-flow: mm, then sub"]),
    "the_host_waits_for_a_stream": ("A.synchronize()", ["race-flow: add, then mul"]),
    "the_host_waits_for_an_event": ("E.synchronize()", ["race-flow: add, then mul"]),
    "the_host_waits_for_the_device": ("A.wait_stream(D)", ["race-flow: the caller, then add"]),
    "the_host_waits_for_whatever_device": ("A.wait_stream(D)", ["race-flow: the caller, then mul"]),
    "the_host_waits_first": ("D.wait_stream(A)", ["unjoined: add"]),
    "the_host_orders_streams_that_do_not_wait": (
        "A.wait_stream(D)", ["race-flow: the caller, then mul"]),
    "the_host_waits_in_every_turn": ("A.synchronize()", ["unjoined: add"]),
}


def name_of(value):
    return value.name if isinstance(value, Program) else ""


def check_one_graph(program, place):
    """By line that is left out."""
    graph, = check_graphs(program.at(place), program.inputs(0), place)
    return graph


@pytest.mark.parametrize(("program", "wanted"), RACY, ids=name_of)
def test_exactly_the_races_of_a_racy_program_are_told(program, wanted):
    checked = check_one_graph(program, host())[""]
    assert checked.texts() == wanted
    checked.oracle.check(checked.told)


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_less_one_line_of_syncs_exactly_what_it_ordered_is_told(program):
    place = host()
    if reason := place.why_not(program):
        pytest.skip(reason)
    graphs = check_graphs(program.at(place), program.inputs(0), place)
    if len(graphs) > 1:  # what a line orders on the other side of a break is not known
        assert not any(found[""].told for found in graphs)
        return
    checked = graphs[0]
    if program.name in LESS:
        line, wanted = LESS[program.name]
        assert checked[line].texts() == wanted
    for line, found in checked.items():
        found.oracle.check(found.told)
        assert line or (not found.told and not found.oracle.races())


def test_the_oracle_objects_to_what_is_missing_false_or_told_twice():
    program = next(program for program, _ in RACY if program.name.startswith("t28"))
    checked = check_one_graph(program, host())[""]
    first, second = checked.told
    false = dataclasses.replace(first, first=second.second, second=first.first)
    for told_wrongly in ([first], [second], [first, second, false], [first, first, second],
                         [dataclasses.replace(first, kind="race-flow"), second]):
        with pytest.raises(AssertionError):
            checked.oracle.check(told_wrongly)


def test_the_less_of_every_program_is_known():
    known = {program.name for program in PROGRAMS}
    assert LESS.keys() <= known and len(LESS) >= 70
    assert sum(program.name not in LESS for program in PROGRAMS) <= 8


def test_both_operations_of_a_report_have_their_lines():
    program = next(program for program, _ in RACY if program.name.startswith("t36"))
    first = program.function.__code__.co_firstlineno
    with pytest.raises(Exception, match="race-mutation") as error:
        compiled(program.at(host()))(*program.inputs(0))
    text = str(error.value)
    assert f"`copy_` (test_stream_races.py:{first + 6}" in text
    assert f"`mul` (test_stream_races.py:{first + 4}" in text
