# SPDX-License-Identifier: Apache-2.0
"""A region that cannot be a tape, as a C function that calls Inductor's under Python's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from anabranch._compile.layouts import TensorLayout
from anabranch._core.record import RegionFunction, write_region_error


def python_region(compiled: Any, inputs: Sequence[Any], outputs: Sequence[TensorLayout],
                  offsets: Sequence[int]) -> Any:
    """A region that calls Inductor's function under Python's lock, as a C function."""

    def run(context: Any, call: Any) -> int:
        try:
            given = call.contents.buffers
            buffers = [(given[i] or 0) + offset for i, offset in enumerate(offsets)]
            position = 0
            values = []
            for item in inputs:
                if isinstance(item, TensorLayout):
                    values.append(tensor_at(buffers[position], item))
                    position += 1
                else:
                    values.append(item)
            with torch.no_grad():
                results = compiled(values)
                for layout, result in zip(outputs, results, strict=True):
                    tensor_at(buffers[position], layout).copy_(result)
                    position += 1
        except Exception as error:
            write_region_error(call, f"{type(error).__name__}: {error}")
            return 1
        return 0

    return RegionFunction(run)


def tensor_at(address: int, layout: TensorLayout) -> torch.Tensor:
    if layout.size_bytes == 0:
        return torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype,
                                   device="cpu")
    memory = (ctypes.c_char * layout.size_bytes).from_address(address)
    flat = torch.frombuffer(memory, dtype=layout.dtype)
    return flat.as_strided(layout.sizes, layout.strides)
