# SPDX-License-Identifier: Apache-2.0
"""For which GPUs a library holds device code, read from the fat binary inside it. The toolkit's own
cuobjdump is not everywhere where nvcc is."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of what follows
ENTRY = struct.Struct("<HHIQ8xHHI")  # kind, version, header's size, size, ..., architecture
MAGIC, MACHINE_CODE = 0xBA55ED50, 2


def read_architectures(library: Path) -> list[int]:
    """Such as [80, 90]; none where it was built without nvcc."""
    data, found = library.read_bytes(), []
    for match in re.finditer(re.escape(struct.pack("<IHH", MAGIC, 1, HEADER.size)), data):
        begin = match.start() + HEADER.size
        end = begin + HEADER.unpack_from(data, match.start())[3]
        while begin < end:
            kind, _, header_bytes, size_bytes, _, _, architecture = ENTRY.unpack_from(data, begin)
            if kind == MACHINE_CODE:
                found.append(architecture)
            begin += header_bytes + size_bytes
    return found


def expected_architectures() -> list[int]:
    """Those that the build names, as far as this machine's nvcc knows them."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        return []
    known = subprocess.run([nvcc, "--list-gpu-code"], text=True, check=True, capture_output=True)
    cmake = (ROOT / "src/device/cuda/device_code.cmake").read_text()
    named = re.search(r"ANABRANCH_CUDA_ARCHITECTURES ([\d ]+) CACHE", cmake)[1]
    return [int(arch) for arch in named.split() if f"sm_{arch}\n" in known.stdout + "\n"]
