#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_wheel.sh <python> <machine>: a wheel for Linux with glibc 2.28 or newer on x86_64 or
# aarch64, in dist/. <python> has what requirements/wheel.txt names. The C++ library is not in it:
# docs/installing.md says why.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 machine=$2
built=build/manylinux/$machine
targets='anabranch_bridge;anabranch_call;anabranch_tool'

rm -rf "$built/wheel"
mkdir -p "$built" .cache/zig dist
ANABRANCH_ZIG=$("$python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig
PATH=$(dirname "$(realpath -s "$python")"):$PATH
export ANABRANCH_ZIG PATH ANABRANCH_WHEEL_MACHINE=$machine
export ZIG_GLOBAL_CACHE_DIR=$PWD/.cache/zig _PYTHON_HOST_PLATFORM=linux-$machine
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation . \
  --wheel-dir "$built/wheel" \
  --config-settings "build-dir=$built/cmake" \
  --config-settings "build.targets=$targets" \
  --config-settings "install.components=bridge;tool" \
  --config-settings "install.strip=false" \
  --config-settings "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/manylinux.cmake"
# The oldest tag that its symbols allow: auditwheel takes tags of this machine alone by name.
"$python" -m auditwheel repair --only-plat --plat auto --wheel-dir dist "$built"/wheel/*.whl
