# SPDX-License-Identifier: Apache-2.0
"""What must be there before torch's private parts are touched."""

from __future__ import annotations

import importlib.util

from anabranch import errors

OLDEST_TORCH = (2, 11)


def require_torch() -> None:
    """Raises CompileError [E0603, E0604] unless a supported torch is installed."""
    if importlib.util.find_spec("torch") is None:
        raise errors.CompileError(
            604, "backend: torch is not installed.",
            "Install it, for example: pip install 'torch>=2.11'.")
    import torch

    if torch_version(torch.__version__) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise errors.CompileError(
            603, f"backend: torch {torch.__version__} was found, and {oldest} or newer is "
            "supported.", "Upgrade torch.")


def torch_version(text: str) -> tuple[int, int]:
    """Major and minor of a version such as "2.11.0+cu130"."""
    major, minor = text.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
