# SPDX-License-Identifier: Apache-2.0
"""Where a row of the suite comes from: machine, versions, commit, command. Touches no GPU."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from torch_common import ROOT, machine

PACKAGES = ("torch", "triton", "transformers", "timm", "torchvision")


def _said(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True,
                              cwd=ROOT).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def about(device: str, commit: str | None) -> dict[str, Any]:
    """``commit`` is told where the tree is a copy without its history."""
    found = {"machine": machine(), "versions": {name: _version(name) for name in PACKAGES},
             "commit": commit or _said("git", "describe", "--always", "--dirty", "--abbrev=12")}
    if device == "cuda":
        asked = _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
        name, _, driver = (asked or "").splitlines()[0].partition(", ") if asked else ("", "", "")
        found.update(gpu=name or None, driver=driver or None)
    return found
