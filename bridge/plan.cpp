// SPDX-License-Identifier: Apache-2.0
#include "anabranch/plan.h"

#include <algorithm>

#include "handles.h"

namespace ab = anabranch;

namespace {

template <typename Ids>
size_t write_numbers(const Ids& ids, uint32_t* out) {
  if (out) std::ranges::transform(ids, out, [](auto id) { return ab::index_of(id); });
  return ids.size();
}

}  // namespace

int32_t anabranch_program_find_regions(const AnabranchProgram* program, uint32_t* groups) {
  return ab::bridge::guard([&] {
    const auto found = ab::find_regions(program->program);
    if (!found.ok()) return ab::bridge::fail(found.error());
    std::ranges::copy(*found, groups);
    return 0;
  });
}

AnabranchReports* anabranch_program_find_reports(const AnabranchProgram* program, int32_t strict) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchReports>(
        ab::find_reports(program->program, {.strict = strict != 0}));
  });
}

void anabranch_reports_free(AnabranchReports* reports) { delete reports; }

size_t anabranch_reports_count(const AnabranchReports* reports) { return reports->reports.size(); }

void anabranch_reports_report(const AnabranchReports* reports, uint32_t number,
                              AnabranchReport* out) {
  const ab::SyncReport& report = reports->reports[number];
  *out = {static_cast<int32_t>(report.kind),
          static_cast<int32_t>(report.severity),
          ab::index_of(report.first),
          ab::index_of(report.second),
          ab::index_of(report.buffer),
          report.begin_byte,
          report.end_byte,
          report.message.c_str()};
}

AnabranchPlan* anabranch_plan_make(const AnabranchProgram* program, int32_t strict) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchPlan>(
        ab::make_plan(program->program, {.strict = strict != 0}));
  });
}

void anabranch_plan_free(AnabranchPlan* plan) { delete plan; }

uint64_t anabranch_plan_arena_bytes(const AnabranchPlan* plan) {
  return plan->plan.arena().size_bytes;
}

uint64_t anabranch_plan_arena_lower_bound_bytes(const AnabranchPlan* plan) {
  return plan->plan.arena().lower_bound_bytes;
}

uint64_t anabranch_plan_arena_naive_bytes(const AnabranchPlan* plan) {
  return plan->plan.arena().naive_bytes;
}

uint64_t anabranch_plan_offset(const AnabranchPlan* plan, uint32_t buffer) {
  const auto& offsets = plan->plan.arena().offsets;
  return buffer < offsets.size() ? offsets[buffer] : ab::kNotInArena;
}

AnabranchProgram* anabranch_plan_program(const AnabranchPlan* plan) {
  return ab::bridge::guard([&] { return new AnabranchProgram{plan->plan.program()}; });
}

size_t anabranch_plan_order(const AnabranchPlan* plan, uint32_t* out) {
  return write_numbers(plan->plan.order(), out);
}

size_t anabranch_plan_waits(const AnabranchPlan* plan, uint32_t* out) {
  for (const ab::Wait& wait : plan->plan.waits()) {
    if (!out) break;
    *out++ = ab::index_of(wait.step);
    *out++ = ab::index_of(wait.on);
  }
  return plan->plan.waits().size();
}

size_t anabranch_plan_slots(const AnabranchPlan* plan, uint32_t* out) {
  const auto slots = plan->plan.slots();
  if (out) {
    std::ranges::transform(slots, out, [](const auto& slot) { return ab::index_of(slot.buffer); });
  }
  return slots.size();
}

size_t anabranch_plan_exits(const AnabranchPlan* plan, uint32_t* out) {
  return write_numbers(plan->plan.exits(), out);
}

size_t anabranch_plan_redundant_waits(const AnabranchPlan* plan, uint32_t* out) {
  return write_numbers(plan->plan.redundant_waits(), out);
}

const char* anabranch_plan_dump(const AnabranchPlan* plan) {
  return ab::bridge::guard([&] { return ab::bridge::keep(ab::dump_plan(plan->plan)); });
}

int32_t anabranch_plan_write(const AnabranchPlan* plan, const char* path) {
  return ab::bridge::guard([&] {
    const ab::Status status = ab::write_plan_file(plan->plan, path);
    return status.ok() ? 0 : ab::bridge::fail(status);
  });
}

AnabranchPlan* anabranch_plan_read(const char* path) {
  return ab::bridge::guard(
      [&] { return ab::bridge::handle_of<AnabranchPlan>(ab::read_plan_file(path)); });
}

const void* anabranch_plan_bytes(const AnabranchPlan* plan, size_t* size) {
  return ab::bridge::guard([&] {
    const auto bytes = ab::write_plan(plan->plan);
    *size = bytes.size();
    return ab::bridge::keep({bytes.begin(), bytes.end()});
  });
}

AnabranchPlan* anabranch_plan_from_bytes(const void* bytes, size_t size) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchPlan>(
        ab::read_plan({static_cast<const uint8_t*>(bytes), size}));
  });
}
