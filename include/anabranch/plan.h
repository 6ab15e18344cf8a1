// SPDX-License-Identifier: Apache-2.0
// A plan: in what order, on which stream, after which waits and where in memory.
// Ownership: a Plan is an immutable value and keeps its Program alive.
// Threads:   all functions are pure: same input, same bytes; no device, clock or randomness.
// Failure:   a Status; make_plan never answers a plan its own checker refuses. Whatever compares
//            views may be kTooManyComparisons.
// Edges:     an empty program has an empty plan with an empty arena.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "anabranch/export.h"
#include "anabranch/program.h"
#include "anabranch/status.h"

namespace anabranch {

// `step` starts only after `on` has ended; the two are on different streams.
struct Wait {
  StepId step{};
  StepId on{};
  bool operator==(const Wait&) const = default;
  auto operator<=>(const Wait&) const = default;
};

// A value that may differ between two launches: the address of one of the caller's buffers.
struct Slot {
  BufferId buffer{};
};

struct ArenaLayout {
  std::uint64_t size_bytes = 0;         // what the arena takes
  std::uint64_t lower_bound_bytes = 0;  // temporaries any two of which live together take this
  std::uint64_t naive_bytes = 0;        // every temporary at a place of its own
  // By buffer; kNotInArena for buffers of the caller and for unused temporaries.
  std::vector<std::uint64_t> offsets;
};
inline constexpr std::uint64_t kNotInArena = ~std::uint64_t{0};

// The parts of a plan, for those who make one by hand or read one from a file.
struct PlanParts {
  std::vector<StepId> order;  // all steps once; a stream runs its steps in this order
  std::vector<Wait> waits;    // sorted by position of `step` in the order, then by stream of `on`
  ArenaLayout arena;
};

class Plan {
 public:
  const Program& program() const { return data_->program; }
  std::span<const StepId> order() const { return data_->parts.order; }
  std::span<const Wait> waits() const { return data_->parts.waits; }
  const ArenaLayout& arena() const { return data_->parts.arena; }
  // In declaration order: every buffer that is not a temporary.
  std::span<const Slot> slots() const { return data_->slots; }
  // Steps that end last on a side stream and that the end of a launch must wait for.
  std::span<const StepId> exits() const { return data_->exits; }
  // wait_event steps that order nothing that was not ordered already.
  std::span<const StepId> redundant_waits() const { return data_->redundant; }

 private:
  friend class PlanAccess;  // src/plan/plan.cpp
  struct Data {
    Program program;
    PlanParts parts;
    std::vector<Slot> slots;
    std::vector<StepId> exits;
    std::vector<StepId> redundant;
  };
  explicit Plan(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

struct PlanOptions {
  bool strict = false;  // reports are graver: see Severity
};

// What telling apart the views of a program may cost: so many comparisons, and so many more for
// each access. Views that tile a buffer, or lie inside each other, need a few each; strided views
// that lie across each other need one for each pair, and more where their strides have no common
// measure. Above it is kTooManyComparisons: some seconds of work, and a plan file that asks for
// more was made to keep its reader busy.
inline constexpr std::uint64_t kMaxComparisons = std::uint64_t{1} << 26;
inline constexpr std::uint64_t kMaxComparisonsPerAccess = 256;

// Derives order, waits and memory, then checks the result with check_plan. Refused
// (kUnsynchronised) if a report of find_reports is an error; all other reports leave a plan that is
// right.
ANABRANCH_API Result<Plan> make_plan(const Program& program, const PlanOptions& options = {});
// Takes a plan made elsewhere. Refused (kPlanInvalid, kRace) unless it is complete and race-free in
// program order; reports are not asked for.
ANABRANCH_API Result<Plan> make_plan_from_parts(const Program& program, PlanParts parts);

inline constexpr BufferId kNoBuffer{~std::uint32_t{0}};
inline constexpr StepId kNoStep{~std::uint32_t{0}};

// What the user's own syncs leave open, on streams that the user synchronises (docs/streams.md).
enum class ReportKind : std::uint8_t {
  kRaceFlow,      // nothing orders a read after the write of what it reads. Edge added
  kRaceMutation,  // nothing orders a write with another use of bytes that it changes. Not planned
  kInexact,       // as these, but whether they share a byte is not decidable. Edge added
  kUnjoined,      // the work of a stream is never joined to the ambient one. Join added
  kUnrecorded,    // a wait for an event that nothing before it records. It waits for nothing
};

//                race-flow  race-mutation  inexact  unjoined  unrecorded
//   by default   warning    error          note     note      warning
//   strict       error      error          note     warning   error
enum class Severity : std::uint8_t { kNote, kWarning, kError };

struct SyncReport {
  ReportKind kind = ReportKind::kRaceFlow;
  Severity severity = Severity::kNote;
  StepId first = kNoStep;                      // kNoStep: the caller, before the program
  StepId second = kNoStep;                     // kNoStep: the caller, after it
  BufferId buffer = kNoBuffer;                 // of races only
  std::uint64_t begin_byte = 0, end_byte = 0;  // within buffer, between the bounds of both views
  bool exact = true;                           // false: kInexact
  Wait missing{};                              // what would order the two; kNoStep as above
  std::string message{};                       // one line; names sources, streams and the remedy
};

// Pure, and near linear in steps; nothing, at once, where all streams are placed. Every race
// follows from the missing waits of the reports and the syncs there are, and no report from the
// others of its kind. In program order of `second`, then unjoined streams in that of `first`.
ANABRANCH_API Result<std::vector<SyncReport>> find_reports(const Program& program,
                                                           const PlanOptions& options = {});

// Two steps of which the first must end before the second starts, and nothing makes sure of it.
struct Race {
  StepId first{};
  StepId second{};
  BufferId buffer{};        // as `first` names it; kNoBuffer: an event or a synchronize asks for it
  BufferId other_buffer{};  // differs from `buffer` where two temporaries share arena bytes
  std::uint64_t begin_byte = 0, end_byte = 0;  // within buffer, the shared interval
  bool exact = true;  // false: the overlap of two strided views was not decidable
  Wait missing{};     // the shortest wait that would order the two
};

// The independent race checker: shares no code with what derives waits. Reports at most `limit`.
// Whether the parts fit the program at all is for make_plan_from_parts to check.
ANABRANCH_API Result<std::vector<Race>> find_races(const Program& program, const PlanParts& parts,
                                                   std::size_t limit = 16);
ANABRANCH_API Status check_plan(const Program& program, const PlanParts& parts);

// The largest groups of steps that can be compiled as one unit: one stream each, no cycle between
// groups, none delaying a step of another stream that could have started. Answers the group of
// each step by program order; groups are numbered in an order in which they can run. Steps that
// are not compute each have a group of their own.
ANABRANCH_API Result<std::vector<std::uint32_t>> find_regions(const Program& program);

// Text for people: streams side by side, waits, memory.
ANABRANCH_API std::string dump_plan(const Plan& plan);

// Plan files: FlatBuffers, versioned, data only. See docs/file-formats.md. write_plan answers no
// bytes where the plan exceeds the format (2 GiB, or a name of 64 KiB); write_plan_file says so.
ANABRANCH_API std::vector<std::uint8_t> write_plan(const Plan& plan);
// Verifies, bounds and race-checks; never trusts the bytes.
ANABRANCH_API Result<Plan> read_plan(std::span<const std::uint8_t> bytes);
// The file is whole or as it was, and keeps its mode. Links, devices and FIFOs are written through
// and never replaced (docs/file-formats.md).
ANABRANCH_API Status write_plan_file(const Plan& plan, const std::string& path);
ANABRANCH_API Result<Plan> read_plan_file(const std::string& path);

}  // namespace anabranch
