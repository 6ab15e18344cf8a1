# SPDX-License-Identifier: Apache-2.0
"""What runs unrecorded is told: once a code and place, where Python's filters for warnings see it.

How often each has happened is counted, for reports and for the summary at exit. Threads: any.
Failure: none; where a filter makes an error of a warning, which would stop a program that is right,
it is a line of the log.
"""

from __future__ import annotations

import atexit
import collections
import logging
import sys
import threading
import warnings
from collections.abc import Hashable

from anabranch import config
from anabranch._record.refusals import Reason, called_from, line_of
from anabranch.errors import RecordWarning, code_text

log = logging.getLogger("anabranch.record")
_lock = threading.Lock()
# By code and place, or another key: how often, the line of the summary, and what has been told.
_times: collections.Counter[Hashable] = collections.Counter()
_lines: dict[Hashable, str] = {}
_told: set[Hashable] = set()


def placed(why: Reason) -> Reason:
    """The reason with a place: where it has none, the user's line that makes the call."""
    frame = None if why.place else called_from(sys._getframe(1))
    return why if frame is None else \
        why._replace(place=f"called at {line_of(frame, frame.f_lineno)}")


def tell(head: str, why: Reason, *, is_allowed: bool, key: Hashable = None) -> None:
    """Counts it, and warns of the first of its ``key``: of its code and place. ``head`` begins the
    message."""
    why = placed(why)
    if note(key or key_of(why), f"{head}: {why}", why, is_allowed=is_allowed):
        where = f"{why.place} [{code_text(why.code)}]".lstrip()
        warn("\n  ".join(filter(None, (f"{head}: {why}", where, why.remedy))))


def note(key: Hashable, what: str, why: Reason, *, is_allowed: bool) -> bool:
    """Counts something, for which the summary has a line; answers whether it is to be told: what is
    allowed is not, and nothing is twice."""
    with _lock:
        place = f" ({why.place})" if why.place else ""
        _lines.setdefault(key, f"{code_text(why.code)} {what}{place}")
        _times[key] += 1
        if is_allowed or key in _told:
            return False
        _told.add(key)
        return True


def times_noted(why: Reason) -> int:
    return _times[key_of(why)]


def key_of(why: Reason) -> tuple[int, str]:
    return why.code, why.place or why.text


def warn(message: str) -> None:
    """At the line of the user's that calls what is not recorded; at the outermost where there is
    none."""
    frame = called_from(sys._getframe(1))
    name, line, found = ("sys", 1, vars(sys)) if frame is None else \
        (frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    try:
        warnings.warn_explicit(message, RecordWarning, name, line, found.get("__name__"),
                               found.setdefault("__warningregistry__", {}))
    except RecordWarning:
        log.warning("anabranch: %s", message)


def _summarize() -> None:
    if config.summary and _lines and sys.stderr is not None:
        lines = [f"  {_times[key]} times {line}" for key, line in _lines.items()]
        print("anabranch: what did not run as planned", *lines, sep="\n", file=sys.stderr)


atexit.register(_summarize)
