#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# need_packages.sh <group>...: sees to it that the tools and libraries of these groups are there.
#   build   compiler, CMake and the libraries we use       test     the test libraries
#   clang   the second compiler, for sanitizers            format   clang-format
#   python  what $PYTHON needs to make environments and to compile against
#   page    a browser, for the tests of pages: 300 MB, and these are left out without it
# On Debian and Ubuntu what is missing is installed where that is allowed; otherwise the one line to
# run is printed. Without the libraries CMake fetches them; without the tools this fails.
set -euo pipefail
python=${PYTHON:-python3}

has() { command -v "$1" >/dev/null 2>&1; }
installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
python_has() { has "$python" && "$python" -c "$1" >/dev/null 2>&1; }

tools=() libraries=()
tool() { has "$1" || tools+=("$2"); }
library() { for name in "$@"; do installed "$name" || libraries+=("$name"); done; }

for group in "$@"; do
  case $group in
    build)
      tool g++ g++
      tool cmake cmake
      tool ninja ninja-build
      library libfmt-dev libflatbuffers-dev nlohmann-json3-dev libcli11-dev libbenchmark-dev
      ;;
    test) library libgtest-dev libgmock-dev librapidcheck-dev ;;
    clang)
      tool clang++ clang
      library libclang-rt-dev
      ;;
    format) tool clang-format clang-format ;;
    python)
      has "$python" || tools+=(python3)
      python_has 'import ensurepip, venv' || tools+=(python3-venv)
      python_has 'import os, sysconfig
assert os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h"))' ||
        tools+=(python3-dev)
      ;;
    page)
      has chromium || has chromium-browser || has google-chrome || tool chromium chromium
      ;;
    *) echo "need_packages: no group '$group'" >&2; exit 2 ;;
  esac
done

if ! has dpkg-query; then
  libraries=()  # another system: CMake says which libraries it does not find
fi
missing=(${tools[@]+"${tools[@]}"} ${libraries[@]+"${libraries[@]}"})
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
may_install() { has apt-get && { [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1; }; }

install_missing() {
  local known=() name
  "${as_root[@]}" apt-get -qq update || return 1
  for name in "${missing[@]}"; do  # not every release has every name
    if apt-cache show "$name" >/dev/null 2>&1; then known+=("$name"); fi
  done
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${known[@]}" >/dev/null
}

if may_install; then
  echo "Installing ${missing[*]}"
  install_missing && exit 0
  echo "The packages could not be installed." >&2
fi
echo "Missing: ${missing[*]}. This line installs them:" >&2
echo "  sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
if [ ${#tools[@]} -gt 0 ] && [ "${tools[*]}" != ninja-build ]; then exit 1; fi
echo "Going on without: CMake fetches missing libraries." >&2
