# SPDX-License-Identifier: Apache-2.0
"""Blocks of streams that ran in eager inside compiled code, because Dynamo could not cut there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from anabranch import config, errors
from anabranch._compile import report
from anabranch._record.refusals import Reason
from anabranch._record.warn import note
from anabranch.streams import OFFLOAD, OVERLAP, Pair

log = logging.getLogger("anabranch.compile")
_REMEDY = ("Dynamo does not cut a loop, a try, or a with of most other contexts: move the break "
           "out of these, or the block into a function. TORCH_LOGS=graph_breaks names the break.")
_BETWEEN = (contextlib.__file__, str(Path(torch.__file__).parent))
_LOST = 613


def lose(options: Mapping[str, Any], frame: FrameType, pairs: tuple[Pair, ...]) -> None:
    """Tells of a block that a frame enters in eager: once a line, and to whoever explains the call.
    CompileError [E0613] under strict. Nothing where streams are switched off."""
    chosen = config.resolve(options)
    if not chosen.streams:
        return
    file, line = place = _place_of(frame)
    block = _named(dict(pairs))
    message = (f"{file.rsplit('/', 1)[-1]}:{line}: {block} has no effect, since Dynamo runs the "
               "code around it in eager")
    is_allowed = _LOST in chosen.allow
    if chosen.strict and not is_allowed:
        raise errors.CompileError(_LOST, f"compile: {message}, and strict=True forbids "
                                       "that.", _REMEDY)
    report.lose(message)
    if note((_LOST, *place, block), message, Reason(message, _LOST), is_allowed=is_allowed):
        log.warning("anabranch: %s. %s [E0613]", message, _REMEDY)


def _place_of(frame: FrameType) -> tuple[str, int]:
    """Of a decorator or an ExitStack the line that called it, and not the ways of a module to its
    forward."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename.startswith(_BETWEEN):
        outer = outer.f_back
    found = outer or frame
    return found.f_code.co_filename, found.f_lineno


def _named(pairs: Mapping[str, Any]) -> str:
    if OVERLAP in pairs:
        return f"overlap({pairs[OVERLAP]})"
    if OFFLOAD in pairs:
        return "offload()"
    return f"stream({next(iter(pairs.values()))!r})"
