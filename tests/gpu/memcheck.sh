#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# memcheck.sh <program> [argument...]: the program under compute-sanitizer ($COMPUTE_SANITIZER): no
# kernel may touch memory that is not its own. Answers 77, skipped, where the sanitizer or a GPU is
# missing; a program that finds no GPU says so by answering 77 itself.
set -euo pipefail
sanitizer=${COMPUTE_SANITIZER:-compute-sanitizer}
if ! command -v "$sanitizer" >/dev/null; then
  echo "skipped: no compute-sanitizer, which comes with the CUDA toolkit"
  exit 77
fi
"$@" || exit $?
exec "$sanitizer" --tool memcheck --error-exitcode 99 "$@"
