// SPDX-License-Identifier: Apache-2.0
// Twenty steps over three streams, planned and recorded once, launched a thousand times with
// changing buffers. Writes its plan to a file, which from_file.cpp launches without this program.
//
//   ambient   fill  prepare --+----------------------------------+-> join  sum
//   left                      +-> left 0 -> left 1 ... left 7 ---+
//   right                     +-> right 0 -> right 1 ... right 7 +
#include <anabranch/anabranch.h>

#include <cstdio>
#include <string>

#include "twenty_regions.h"

using namespace anabranch;

// A chain of steps on one stream, each with a new temporary; answers the last. Give every value a
// buffer of its own: the plan lets those that never live together share memory.
BufferId add_chain(ProgramBuilder& builder, StreamId stream, const std::string& name,
                   BufferId from) {
  for (std::uint32_t i = 0; i < kLinks; ++i) {
    const std::string step = name + " " + std::to_string(i);
    const BufferId to = builder.add_buffer({step, Role::kTemporary, kBytes});
    builder.compute(stream, step, {builder.read(from), builder.write(to)});
    from = to;
  }
  return from;
}

// Steps say what they read and write, and which stream they run on. Waits are the plan's business.
Result<Program> make_program() {
  ProgramBuilder builder;
  const StreamId left = builder.add_stream("left");
  const StreamId right = builder.add_stream("right");
  const BufferId x = builder.add_buffer({"x", Role::kInput, kBytes});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, kBytes});
  const BufferId total = builder.add_buffer({"total", Role::kOutput, sizeof(std::uint64_t)});
  const BufferId base = builder.add_buffer({"base", Role::kTemporary, kBytes});

  builder.fill(kAmbient, builder.whole(total), 0);
  builder.compute(kAmbient, "prepare", {builder.read(x), builder.write(base)});
  const BufferId a = add_chain(builder, left, "left", base);
  const BufferId b = add_chain(builder, right, "right", base);
  builder.compute(kAmbient, "join", {builder.read(a), builder.read(b), builder.write(y)});
  builder.compute(kAmbient, "sum", {builder.read(y), builder.read_write(total)});
  return builder.build();
}

int fail(const Status& status) {
  std::puts(status.message().c_str());
  return 1;
}

int main(int argc, char** argv) {
  const Result<Program> program = make_program();
  if (!program) return fail(program.error());
  const Result<Plan> plan = make_plan(*program);
  if (!plan) return fail(plan.error());
  const ArenaLayout& arena = plan->arena();
  std::printf("planned: %zu steps on %zu streams, %zu waits, arena of %llu bytes instead of %llu\n",
              program->steps().size(), program->streams().size(), plan->waits().size(),
              static_cast<unsigned long long>(arena.size_bytes),
              static_cast<unsigned long long>(arena.naive_bytes));

  Links links;
  const Result<Recording> recording = record(*plan, Device::host(), make_regions(links));
  if (!recording) return fail(recording.error());
  if (!launch_many(*recording, links)) return 1;
  std::puts("launched: 1000 times, every result right");

  const std::string path = argc > 1 ? argv[1] : "twenty_steps.plan";
  if (const Status status = write_plan_file(*plan, path); !status) return fail(status);
  std::printf("written: %s\n", path.c_str());
  return 0;
}
