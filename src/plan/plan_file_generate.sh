#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes plan_generated.h from plan.fbs:   plan_file_generate.sh [output folder]
# Run it with flatc 2.0.8, the oldest FlatBuffers supported: what that version writes compiles with
# every later one up to the newest tried (25.12.19), but not the other way round. flatc's own check
# asks for the very version that generated, so it is widened to "2 or later".
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
flatc --version | grep -qx 'flatc version 2\.0\.8' || {
  echo "plan_file_generate: $(flatc --version) found, flatc version 2.0.8 needed" >&2
  exit 2
}
flatc --cpp --scoped-enums -o "$out" "$here/plan.fbs"
awk '
  NR == 1 { print "// SPDX-License-Identifier: Apache-2.0"; print "// clang-format off" }
  /^\/\/ Ensure the included flatbuffers.h/ { skip = 1
    print "// Made with 2.0.8; every later version reads it. See plan_file_generate.sh."
    print "static_assert(FLATBUFFERS_VERSION_MAJOR >= 2, \"FlatBuffers 2.0.8 or later is needed\");"
  }
  !skip { print }
  skip && /"Non-compatible flatbuffers/ { skip = 0 }
' "$out/plan_generated.h" > "$out/plan_generated.h.new"
mv "$out/plan_generated.h.new" "$out/plan_generated.h"
