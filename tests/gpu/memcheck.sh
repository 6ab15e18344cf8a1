#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# memcheck.sh <program> [argument...]: the program under compute-sanitizer ($COMPUTE_SANITIZER): no
# kernel may touch memory that is not its own. Calls that the driver refuses are no error here: a
# kernel's parameters are counted by asking for the next until there is none. Answers 77, skipped,
# where the sanitizer or a GPU is missing; a program that finds no GPU says so by answering 77
# itself.
set -euo pipefail
sanitizer=${COMPUTE_SANITIZER:-compute-sanitizer}
if ! command -v "$sanitizer" >/dev/null; then
  echo "skipped: no compute-sanitizer, which comes with the CUDA toolkit"
  exit 77
fi
"$@" || exit $?
exec "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 "$@"
