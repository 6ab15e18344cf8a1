# SPDX-License-Identifier: Apache-2.0
"""A launched call goes through few functions of ours, whatever is another than in the last one."""

from __future__ import annotations

import sys

import pytest
from kinds_of_call import KINDS, Steps, warmed_up

import anabranch
from anabranch._record import quick

PACKAGE = anabranch.__path__[0]
MOST_FUNCTIONS, MOST_FILES = 4, 3  # of ours


def called(call, *args, **kwargs):
    """The functions of ours that a call goes through, in order."""
    found = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.append((frame.f_code.co_filename[len(PACKAGE) + 1:], frame.f_code.co_name))

    sys.setprofile(note)
    try:
        call(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.skipif(not quick.is_compiled, reason="in Python there are more")
@pytest.mark.parametrize("name", KINDS)
def test_a_call_goes_through_few_functions(name, monkeypatch):
    make, do_gradients_stay = KINDS[name]
    Steps(monkeypatch, do_gradients_stay)
    case = warmed_up(make())
    before = [(report.calls, report.plain_calls) for report in case.recorded.reports]
    for i in (30, 31):
        case.before(i)
        args, kwargs = case.arguments(i)
        found = called(case.recorded, *args, **kwargs)
        files = {file for file, _ in found}
        assert len(found) <= MOST_FUNCTIONS and len(files) <= MOST_FILES, found
    after = [(report.calls, report.plain_calls) for report in case.recorded.reports]
    assert sum(calls for calls, _ in after) == sum(calls for calls, _ in before) + 2
    assert [plain for _, plain in after] == [plain for _, plain in before]
