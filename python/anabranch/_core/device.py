# SPDX-License-Identifier: Apache-2.0
"""device.h from Python: the host device, and what the machine has for CUDA."""

from __future__ import annotations

from ctypes import byref

from anabranch._core.abi import HostOptionsFields
from anabranch._core.handle import Handle
from anabranch._core.library import core


class Device(Handle):
    _free = "device_free"

    @staticmethod
    def host(*, max_lanes: int = 0, spin_ns: int = 50_000, delays_seed: int | None = None,
             **functions: int) -> Device:
        """The host device; ``functions`` are addresses by the names of ThreadControl in device.h,
        0 for none."""
        options = HostOptionsFields(max_lanes, spin_ns, delays_seed is not None, delays_seed or 0,
                                    **{name: at or None for name, at in functions.items()})
        return Device(core.device_host(byref(options)))


class CudaFacts(Handle):
    """What the machine has for CUDA; NativeError where there is no driver that serves."""

    _free = "cuda_facts_free"

    def __init__(self) -> None:
        super().__init__(core.cuda_facts_new())

    @property
    def driver_version(self) -> int:
        """13000 for CUDA 13.0."""
        return core.cuda_facts_driver_version(self.handle)

    @property
    def features(self) -> dict[str, str]:
        """By name: why it is off; empty where it is on."""
        return {self._text("feature_name", i): self._text("feature_why_off", i)
                for i in range(core.cuda_facts_feature_count(self.handle))}

    @property
    def gpus(self) -> list[str]:
        """By ordinal."""
        return [self._text("gpu", i) for i in range(core.cuda_facts_gpu_count(self.handle))]

    @property
    def why_no_gpus(self) -> str:
        """Empty where there is one."""
        return self._text("why_no_gpus")

    def _text(self, name: str, *index: int) -> str:
        return getattr(core, f"cuda_facts_{name}")(self.handle, *index).decode(errors="replace")
