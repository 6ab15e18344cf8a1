# SPDX-License-Identifier: Apache-2.0
"""Warnings that something is not recorded, where Python's filters see them.

Threads: any. Failure: none; where a filter makes an error of a warning, which would stop a program
that is right, it is a line of the log.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from types import FrameType

import torch

from anabranch.errors import RecordWarning

log = logging.getLogger("anabranch.record")
_OURS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep
              for path in (os.path.dirname(__file__), torch.__file__))


def warn(message: str) -> None:
    """At the line of the user's that calls what is not recorded."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    try:
        warnings.warn_explicit(
            message, RecordWarning, frame.f_code.co_filename, frame.f_lineno,
            frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {}))
    except RecordWarning:
        log.warning("anabranch: %s", message)
