// SPDX-License-Identifier: Apache-2.0
// What becomes of the tensors that a forward saves for its backward: each stays on the device, is
// computed again, or goes to pinned memory of the host and comes back; and when its copies run.
// Ownership: values.
// Threads:   pure: the same problem gives the same plan.
// Failure:   a Status for a malformed problem (kProgramInvalid) or decisions (kPlanInvalid, kRace).
//            A budget that cannot be met is no failure: the plan is the smallest one, and says why.
// Edges:     no tensors, no plan: nothing is decided. Made for the Python package, and may change
//            with any version.
//
// A step of computing begins when the step before it has ended, after what it waits for. Two queues
// copy, one out and one in, each in its order, one copy at a time. In one step happen, in order:
//   1. it waits for the copies out of the tensors that are `freed_before` it; their device memory
//      may now serve others
//   2. copies in whose `in_before` it is are queued, and may begin
//   3. it waits for the copies in of the tensors that are `back_before` it
//   4. tensors that are computed again `back_before` it are, and then its own work runs
// So device memory changes hands at the beginning of steps only, in an order that does not depend
// on how fast copies are: the peak holds on a slower link too. Time alone is a prediction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch::offload {

enum class Choice : std::uint8_t { kNone = 0, kKeep = 1, kRecompute = 2, kOffload = 3 };

// Steps are numbered from the first of the forward to the last of the backward.
struct Tensor {
  std::uint64_t size_bytes = 0;
  std::uint32_t made_after = 0;  // the step that makes it; its memory is taken from there on
  std::uint32_t last_forward_use = 0;
  std::uint32_t first_backward_use = 0;
  std::uint32_t last_backward_use = 0;
  std::int64_t recompute_ns = -1;  // below 0: it may not be computed again
  bool may_offload = false;
  Choice must = Choice::kNone;         // a user's wish
  std::vector<std::uint32_t> needs{};  // tensors before it in the list, for computing it again
};

struct Link {
  double out_bytes_per_s = 0;  // from device to host
  double in_bytes_per_s = 0;
  std::uint64_t latency_ns = 0;  // of each copy, on its queue
  double both_ways = 1;          // of either rate while the other queue copies too; 0 < x <= 1
};

struct NamedLink {
  std::string_view name;
  Link link;
};
// Links of machines that are not here, each with its source in src/offload/links.cpp: "pcie4-x16",
// "pcie5-x16", "nvlink-c2c-gh200", "nvlink-c2c-gb200".
ANABRANCH_API std::span<const NamedLink> known_links();

struct Problem {
  std::vector<std::uint64_t> step_ns{};
  std::uint32_t forward_steps = 0;
  std::vector<std::uint64_t> base_bytes{};  // by step, beside the saved tensors; empty: 0
  std::vector<Tensor> tensors{};
  Link link{};
  // Copies that take so much longer than the link says are planned for; predictions are of the
  // link.
  double link_margin = 0.1;
  std::uint64_t budget_bytes = 0;  // for base and saved tensors together
  std::uint64_t pinned_bytes = 0;  // at most so much pinned memory
};

inline constexpr std::uint64_t kPinnedAlignment = 256;
inline constexpr std::uint32_t kNever = ~std::uint32_t{0};

// Of a tensor that stays, `choice` alone counts. All steps and orders are kNever where they do not
// count, and offsets 0.
struct Decision {
  Choice choice = Choice::kKeep;
  std::uint32_t back_before = kNever;   // of both others: the step that has it again
  std::uint32_t freed_before = kNever;  // of both others: its memory serves others from here on
  std::uint32_t out_order = kNever;     // on the queue that copies out, from 0
  std::uint32_t out_after = kNever;     // the copy may begin when this step has ended
  std::uint32_t in_order = kNever;
  std::uint32_t in_before = kNever;  // its memory on the device is taken from this step on
  std::uint64_t pinned_offset = 0;
  bool operator==(const Decision&) const = default;
};

struct Prediction {
  std::uint64_t peak_bytes = 0;
  std::uint32_t peak_step = 0;     // the first with that peak
  std::uint64_t total_ns = 0;      // from the first step to the end of the last
  std::uint64_t added_ns = 0;      // over a program in which all tensors stay
  std::uint64_t recompute_ns = 0;  // of these; the others are waits
  std::uint64_t out_bytes = 0, in_bytes = 0;
  std::uint64_t pinned_bytes = 0;
  bool operator==(const Prediction&) const = default;
};

struct OffloadPlan {
  std::vector<Decision> decisions;  // by tensor
  Prediction predicted;
  // The least peak of any choice. Where pinned memory is too small for all, or tensors need others,
  // the least that was found.
  std::uint64_t least_bytes = 0;
  std::string reason;  // why the budget is not met; empty where it is
};

// Least time, then least bytes on the link, within the budget. Both choices and times are found by
// greedy ways that are then improved, and may miss the best; see src/offload/README.md.
ANABRANCH_API Result<OffloadPlan> plan_offload(const Problem& problem);

// What the decisions take in memory and time; they must pass check_offload.
ANABRANCH_API Prediction simulate_offload(const Problem& problem,
                                          std::span<const Decision> decisions);

// Proves decisions without the clock, and shares no code with what makes them: no use of a tensor
// that is not there, no copy in before its copy out has ended, no bytes of pinned memory for two
// tensors, no queue that waits for itself, no peak above the claimed one.
ANABRANCH_API Status check_offload(const Problem& problem, std::span<const Decision> decisions,
                                   std::uint64_t peak_bytes);

}  // namespace anabranch::offload
