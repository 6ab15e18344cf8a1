# SPDX-License-Identifier: Apache-2.0
"""Ids of W3C's trace context (https://www.w3.org/TR/trace-context/), by which tools that watch
services put what a report tells beside what they know of the call.

Threads: any. Failure: none: what is no id counts as none, as the standard has it.
"""

from __future__ import annotations

import re
import secrets

_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def child_of(traceparent: str | None) -> str | None:
    """A traceparent of the same trace, with a span of its own; None where there is none."""
    found = _TRACEPARENT.fullmatch((traceparent or "").strip())
    if found is None or not int(found[2], 16) or not int(found[3], 16):
        return None
    version, trace, _, flags, more = found.groups()
    if version == "00" and more:
        return None
    return f"00-{trace}-{secrets.token_hex(8)}-{flags}"
