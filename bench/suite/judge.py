# SPDX-License-Identifier: Apache-2.0
"""Whether a result is right, as PyTorch's compiler benchmark judges it.

Eager in the same precision is the reference. One in double precision says how far from the truth
eager is itself; where it cannot be had, for want of memory or of operators, results are compared by
cosine similarity.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from case import Case
from lists import LOOSE_SMALL_TENSORS, Entry, tolerance
from torch._dynamo.utils import same

Found = dict[str, torch.Tensor]


def tensors_of(output: Any, name: str = "output") -> Found:
    """All tensors in an output of a model, by where they are."""
    if isinstance(output, torch.Tensor):
        return {name: output.detach()}
    if isinstance(output, Mapping):
        items: Any = output.items()
    elif isinstance(output, (tuple, list)):
        items = enumerate(output)
    else:
        return {}
    return {inner: tensor for key, value in items
            for inner, tensor in tensors_of(value, f"{name}.{key}").items()}


def left_behind(model: torch.nn.Module) -> Found:
    """What a training step leaves: gradients, of which a missing one counts as zeros, and buffers."""
    gradients = {f"gradient of {name}": torch.zeros_like(parameter) if parameter.grad is None
                 else parameter.grad.detach() for name, parameter in model.named_parameters()}
    return {**gradients, **{f"buffer {name}": buffer for name, buffer in model.named_buffers()}}


def eager_results(case: Case, kind: str) -> Found:
    """Of one step, on the CPU. The case's model is changed by it."""
    if kind == "inference":
        with torch.no_grad():
            found = tensors_of(case.forward(case.model, *case.positional, **case.named))
    else:
        loss = case.loss(case.model, *case.positional, **case.named)
        loss.backward()
        found = {"loss": loss.detach(), **left_behind(case.model)}
    return {name: tensor.to("cpu", copy=True) for name, tensor in found.items()}


@contextlib.contextmanager
def memory_given_back(device: str) -> Iterator[None]:
    try:
        yield
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


@dataclasses.dataclass
class Reference:
    """``exact`` is in double precision, ``why_inexact`` says why there is none."""

    eager: Found
    exact: Found | None
    why_inexact: str = ""


def exact_results(case: Case, kind: str) -> tuple[Found | None, str]:
    """In double precision; or none, and why."""
    with memory_given_back(case.device):
        try:
            return eager_results(case.copied(torch.float64), kind), ""
        except Exception as error:  # whatever a model does not have in double precision
            return None, f"{type(error).__name__}: {error}".partition("\n")[0]


def make_reference(case: Case, kind: str, precision: str, is_exact: bool) -> Reference:
    """``case`` is in single precision, and stays as it is."""
    exact, why = exact_results(case, kind) if is_exact else (None, "it was not asked for")
    with memory_given_back(case.device):
        eager = eager_results(case.copied().in_precision(precision), kind)
    return Reference(eager, exact, why)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _differs(entry: Entry, reference: Reference, name: str, tensor: torch.Tensor,
             least: float, is_single: bool, say: Callable[..., None]) -> bool:
    def there(wanted: torch.Tensor) -> torch.Tensor:
        return wanted.to(tensor.device)

    exact = reference.exact
    reached = same(there(reference.eager[name]), tensor,
                   None if exact is None else there(exact[name]), tol=least,
                   cos_similarity=exact is None, equal_nan=not is_single, log_error=say,
                   use_larger_multiplier_for_smaller_tensor=entry.name in LOOSE_SMALL_TENSORS)
    return not reached


def judge(entry: Entry, kind: str, precision: str, reference: Reference, found: Found
          ) -> dict[str, Any]:
    """Row of the results: whether all tensors are right, by what that was told, and which was the
    first that is not."""
    device = next(iter(found.values())).device.type
    least = tolerance(entry, kind, device, precision)
    row: dict[str, Any] = {
        "passed": True, "tensors": len(found), "tolerance": least,
        "by": "float64" if reference.exact is not None else f"cosine ({reference.why_inexact})"}
    if set(found) != set(reference.eager):
        missing = sorted(set(found) ^ set(reference.eager))
        return {**row, "passed": False, "first_wrong": f"not in both: {missing[0]}"}
    heard = _Lines()
    log = logging.Logger("judge")
    log.addHandler(heard)
    for name, tensor in found.items():
        if _differs(entry, reference, name, tensor, least, precision == "float32", log.error):
            return {**row, "passed": False, "first_wrong": name, "said": heard.lines[-1:]}
    return row
