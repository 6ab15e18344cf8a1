# SPDX-License-Identifier: Apache-2.0
"""Signatures that are too many run plainly, hold nothing, and say what tells them apart."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anabranch import config
from anabranch._core.abi import CaptureCounts
from anabranch._record import recorder as recorder_module
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.signature import (
    ARGUMENTS_ALONE,
    describe,
    differences,
    signature_of,
)
from anabranch._record.signatures.specializations import Admission, Specializations
from anabranch._record.state.state import NO_STATE, State
from anabranch.errors import RecordError

pytestmark = pytest.mark.oldest


def recorder(**options):
    return recorder_module.Recorder(lambda leaves: leaves[0] + 1, config.resolve(
        {"max_recordings": 2, **options}), "step", kind=CallableKind())


def run(made, key):
    return made.run(key, [key], NO_STATE, lambda: f"({key})")


def test_signatures_that_are_too_many_share_one_entry():
    made = recorder()
    assert [run(made, i) for i in range(1000)] == list(range(1, 1001))
    assert len(made.specializations) == 2 and made.specializations.is_full
    *known, beyond = made.specializations.reports()
    assert [report.calls for report in known] == [1, 1] and beyond.calls == 998
    assert "there are 2 signatures already" in beyond.reason and "(2) and" in beyond.inputs
    assert not made.is_refused  # nothing was wrong with it


def test_signatures_that_are_too_many_raise_under_strict():
    made = recorder(strict=True)
    run(made, 0), run(made, 1)
    for key in (2, 3, 2):
        with pytest.raises(RecordError, match="2 signatures already"):
            run(made, key)


def key_of(model, *leaves):
    return signature_of([ARGUMENTS_ALONE, *leaves], State([lambda: model]), None)


def test_what_tells_a_signature_from_the_nearest_is_named():
    model = nn.Linear(2, 2)
    x, other = torch.ones(2), torch.ones(3)
    keys = [key_of(model, x, 0), key_of(model, other, 0)]
    assert differences(key_of(model, x, 0), keys) == []
    assert differences(key_of(model, x, 1), keys) == ["argument 2"]
    assert differences(key_of(model, x), keys) == ["argument 2"]
    model.eval()
    assert differences(key_of(model, x, 0), keys) == ["which modules train"]
    with torch.no_grad():
        assert differences(key_of(model, x, 0), keys)[:2] == ["torch's modes",
                                                              "which modules train"]


# ---- who gets a place


def called(made, *keys):
    for key in keys:
        run(made, key)
    return set(made.specializations)


def test_of_many_inputs_the_first_are_told():
    assert describe([torch.zeros(2, 3), 4, object()]) == "(float32[2, 3], 4, object)"
    told = describe([torch.zeros(2)] * 300)
    assert told.count("float32[2]") == 12 and told.endswith("float32[2] and 288 more)")


def test_a_signature_that_comes_back_takes_the_place_of_one_that_is_not_called_meanwhile():
    made = recorder()
    assert called(made, 0, 1, 2, 1, 2, 1) == {0, 1}
    assert called(made, 2) == {1, 2}  # for the third time, and 0 not once since the first
    assert called(made, 1, 2, 1) == {1, 2}
    assert [report.inputs for report in made.specializations.reports()][:3] == ["(0)", "(1)", "(2)"]
    assert called(made, 0, 0, 0) in ({0, 1}, {0, 2})


def test_signatures_in_turn_do_not_take_places_from_one_another():
    """More than there are places: each call would record."""
    made = recorder()
    for _ in range(20):
        assert called(made, 0, 1, 2, 3) == {0, 1}


def test_a_place_is_given_when_those_that_had_it_have_gone_out_of_use():
    made = recorder()
    for _ in range(5):
        called(made, 0, 1, 2, 3)
    for _ in range(4):
        called(made, 2, 3)
    assert set(made.specializations) == {2, 3}


def test_values_that_never_come_back_take_no_place():
    made = recorder()
    called(made, 0, 1)
    assert called(made, *range(2, 500)) == {0, 1}


def test_of_recordings_that_hold_too_much_those_go_that_were_called_least():
    def spec(calls, held):
        report = SimpleNamespace(memory=SimpleNamespace(held=held))
        return SimpleNamespace(uses=calls, recording=held or None, current_report=lambda: report)

    admission = Admission(100)
    known = {"a": spec(50, 40)}
    assert admission.too_large("a", known) == []
    known["a"].uses += 1  # since then
    known |= {"b": spec(9, 50), "c": spec(2, 0)}
    assert admission.too_large("b", known) == []
    known["b"].uses += 5
    known["d"] = spec(1, 20)
    assert admission.too_large("d", known) == ["a"]
    known["e"] = spec(1, 300)  # by itself it is too large, and what is asked for
    assert set(admission.too_large("e", known)) == {"a", "b", "d"}


# ---- values that change


def told_of(keys, name):
    made = recorder(max_recordings=8)
    made.specializations._differences = lambda key, known: [name] if known else []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for key in keys:
            run(made, key)
    told = [str(one.message) for one in seen]
    return [line for line in told if "unrecorded" not in line], made.specializations.reports()


def test_a_value_that_changes_is_named_after_its_second_change_with_what_to_write_instead():
    told, reports = told_of([0, 1, 0, 1], "an optimizer's numbers")
    assert told == [] and [report.differs for report in reports] == ["", "an optimizer's numbers"]
    told, reports = told_of(range(6), "an optimizer's numbers")
    [line] = told
    assert line.startswith("step: an optimizer's numbers changes") and "lr=torch.tensor" in line
    assert "differs from the nearest other signature in an optimizer's" in str(reports[3])


@pytest.mark.parametrize("name", ["which modules train", "torch's modes", "hooks",
                                  "which gradients there are"])
def test_states_that_a_step_may_be_in_are_no_changing_values(name):
    told, _ = told_of(range(6), name)
    assert told == []


def test_tensors_that_torch_reads_conjugated_or_negated_are_other_signatures():
    """They have the same memory and layout; kernels read it differently."""
    z = torch.ones(4, dtype=torch.complex64)
    given = [z, z.conj(), torch._neg_view(z), z.conj().imag, z.imag]
    assert len({signature_of([x], NO_STATE, ()) for x in given}) == len(given)


@pytest.mark.parametrize("recorded", ["a", "b", "ab", ""])
def test_of_signatures_that_become_one_the_recorded_one_stays_and_the_other_is_told(recorded):
    known = Specializations(4, 1 << 30, lambda key, keys: [])
    specs = {key: known.admit(key, lambda: "step", NO_STATE)[0] for key in "abc"}
    for key in recorded:
        specs[key].recording = SimpleNamespace(timing=None, counts=CaptureCounts())
    known.rename_all(lambda key: {"a": "b"}.get(key, key))
    stays = specs["b" if recorded == "b" else "a"]
    assert known == {"b": stays, "c": specs["c"]}
    assert [spec.is_retired for spec in specs.values()] == [stays is specs["b"],
                                                            stays is specs["a"], False]
    assert [report.dropped for report in known.reports()] == [True, False, False]
