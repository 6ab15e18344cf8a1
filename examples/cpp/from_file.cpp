// SPDX-License-Identifier: Apache-2.0
// Launches a plan that another program wrote: from_file twenty_steps.plan
// The file is checked in full, its plan for races too; what it asks for by name is supplied here.
#include <anabranch/anabranch.h>

#include <cstdio>

#include "twenty_regions.h"

using namespace anabranch;

int fail(const Status& status) {
  std::puts(status.message().c_str());
  return 1;
}

int main(int argc, char** argv) {
  const Result<Plan> plan = read_plan_file(argc > 1 ? argv[1] : "twenty_steps.plan");
  if (!plan) return fail(plan.error());

  // Without its regions a plan cannot be recorded, and the refusal names the first one missing.
  const Result<Recording> empty = record(*plan, Device::host(), {});
  if (!empty) std::printf("refused: %s\n", empty.error().message().c_str());

  Links links;
  const Result<Recording> recording = record(*plan, Device::host(), make_regions(links));
  if (!recording) return fail(recording.error());
  // The bindings follow plan->slots(): the buffers of the caller, by name where it matters.
  for (const Slot& slot : plan->slots()) {
    const Buffer& buffer = plan->program().buffer(slot.buffer);
    std::printf("slot: %s, %llu bytes\n", buffer.name.c_str(),
                static_cast<unsigned long long>(buffer.size_bytes));
  }
  if (!launch_many(*recording, links)) return 1;
  std::puts("launched: 1000 times, every result right");
  return 0;
}
