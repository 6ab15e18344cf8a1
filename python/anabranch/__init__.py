# SPDX-License-Identifier: Apache-2.0
"""Anabranch runs PyTorch programs asynchronously: planned over streams, recorded once, launched
for ever at new addresses. torch is imported when something here first needs it.

    model = torch.compile(model, backend="anabranch")
    step = anabranch.record(train_step)
    with anabranch.stream("side"): ...
    print(anabranch.explain(model, *inputs))
    print(anabranch.bisect(model, *inputs))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anabranch import config, errors
from anabranch.errors import AnabranchError, RecordWarning

if TYPE_CHECKING:
    from anabranch import doctor
    from anabranch._bisect.bisect import bisect
    from anabranch._bisect.verdict import Verdict
    from anabranch._compile.backend import backend
    from anabranch._compile.report import GraphReport
    from anabranch._explain.explanation import Explanation, explain
    from anabranch._explain.profiles import label_profile
    from anabranch._offload.optimizer_state import offload_optimizer
    from anabranch._record.capture.now import is_recording
    from anabranch._record.record import record
    from anabranch._record.recorded_callable import RecordedCallable
    from anabranch._record.recorded_module import RecordedModule
    from anabranch._record.report import RecordingReport
    from anabranch.streams import offload, overlap, stream

__version__ = "0.1.0"
__all__ = ["AnabranchError", "Explanation", "GraphReport", "RecordWarning", "RecordedCallable",
           "RecordedModule", "RecordingReport", "Verdict", "__version__", "backend", "bisect",
           "config", "doctor", "errors", "explain", "is_recording", "label_profile", "offload",
           "offload_optimizer", "overlap", "record", "stream"]

_LAZY = {
    "Explanation": "_explain.explanation",
    "GraphReport": "_compile.report",
    "RecordedCallable": "_record.recorded_callable",
    "RecordedModule": "_record.recorded_module",
    "RecordingReport": "_record.report",
    "Verdict": "_bisect.verdict",
    "backend": "_compile.backend",
    "bisect": "_bisect.bisect",
    "explain": "_explain.explanation",
    "is_recording": "_record.capture.now",
    "label_profile": "_explain.profiles",
    "offload": "streams",
    "offload_optimizer": "_offload.optimizer_state",
    "overlap": "streams",
    "record": "_record.record",
    "stream": "streams",
}


def __getattr__(name: str) -> Any:
    if name == "doctor":  # which tells of a torch that is missing
        return importlib.import_module(".doctor", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    from anabranch._requirements import require_torch

    require_torch()
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    if name == "backend":  # Dynamo reads attributes of a module without calling its __getattr__
        from anabranch.streams import offload, overlap, stream

        globals().update(stream=stream, overlap=overlap, offload=offload)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "doctor"})
