// SPDX-License-Identifier: Apache-2.0
// Conflicts of accesses to one buffer. Accesses of the same bytes are one class. In program order,
// each access is compared with the last write of every class it meets and, if it writes, with the
// reads since; what a write covers is forgotten, because whatever comes later meets that write.
#include <algorithm>
#include <numeric>

#include "plan/check_order.h"
#include "plan/check_overlap.h"

namespace anabranch::check {
namespace {

using Entry = AccessesByBuffer::Entry;

class BufferCheck {
 public:
  BufferCheck(Demands& demands, CompareWork& work) : demands_(demands), work_(work) {}

  void run(BufferId buffer, std::span<const Entry> entries) {
    buffer_ = buffer;
    work_.enter(buffer);
    make_classes(entries);
    find_meeting_classes();
    for (std::size_t i = 0; i < entries.size() && !work_.exhausted(); ++i) {
      const Access& access = access_of(entries[i]);
      compare(class_of_[i], entries[i].step, writes(access));
      remember(class_of_[i], entries[i].step, writes(access));
    }
  }
  const Access& access_of(Entry entry) const {
    return demands_.program.step(entry.step).accesses[entry.access];
  }

 private:
  struct Class {
    ByteSet bytes;
    std::vector<std::uint32_t> meets;  // classes that share or may share bytes, itself too
    bool written = false;
    StepId last_write{};
    std::vector<StepId> reads;  // since then, the last of each lane
  };

  void make_classes(std::span<const Entry> entries);
  void find_meeting_classes();
  void compare(std::uint32_t number, StepId step, bool write);
  void remember(std::uint32_t number, StepId step, bool write);
  void add_read(Class& at, StepId step);
  void demand(StepId first, StepId second) {
    if (demands_.demand(first, second, buffer_, buffer_)) return;
    if (!work_.spend(CompareWork::kKept)) demands_.unmet.pop_back();
  }

  Demands& demands_;
  CompareWork& work_;
  BufferId buffer_{};
  std::vector<Class> classes_;  // by first byte
  std::vector<std::uint32_t> class_of_;
};

void BufferCheck::make_classes(std::span<const Entry> entries) {
  std::vector<ByteSet> sets;
  sets.reserve(entries.size());
  for (const Entry entry : entries) sets.push_back(make_byte_set(access_of(entry).view));
  std::vector<std::uint32_t> sorted(entries.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  std::sort(sorted.begin(), sorted.end(),
            [&](std::uint32_t a, std::uint32_t b) { return sets[a] < sets[b]; });
  classes_.clear();
  class_of_.assign(entries.size(), 0);
  for (const std::uint32_t entry : sorted) {
    if (classes_.empty() || classes_.back().bytes != sets[entry]) {
      classes_.emplace_back().bytes = sets[entry];
    }
    class_of_[entry] = static_cast<std::uint32_t>(classes_.size() - 1);
  }
}

void BufferCheck::find_meeting_classes() {
  for (std::uint32_t i = 0; i < classes_.size(); ++i) {
    Class& a = classes_[i];
    if (a.bytes.begin == a.bytes.end) continue;
    a.meets.push_back(i);
    for (std::uint32_t k = i + 1; k < classes_.size(); ++k) {
      Class& b = classes_[k];
      if (b.bytes.begin >= a.bytes.end) break;
      const Overlap overlap = find_overlap(a.bytes, b.bytes, work_);
      if (overlap == Overlap::kNone) continue;
      if (!work_.spend(CompareWork::kKept)) return;
      a.meets.push_back(k);
      b.meets.push_back(i);
    }
  }
}

void BufferCheck::compare(std::uint32_t number, StepId step, bool write) {
  for (const std::uint32_t other : classes_[number].meets) {
    const Class& met = classes_[other];
    if (!work_.spend(1 + (write ? met.reads.size() : 0))) return;
    if (met.written) demand(met.last_write, step);
    if (!write) continue;
    for (const StepId read : met.reads) demand(read, step);
  }
}

void BufferCheck::remember(std::uint32_t number, StepId step, bool write) {
  Class& at = classes_[number];
  if (!write) return add_read(at, step);
  for (const std::uint32_t other : at.meets) {
    Class& met = classes_[other];
    if (!at.bytes.surely_covers(met.bytes)) continue;
    met.written = false;
    met.reads.clear();
  }
  at.written = true;
  at.last_write = step;
}

void BufferCheck::add_read(Class& at, StepId step) {
  const Clocks& clocks = demands_.clocks;
  for (StepId& read : at.reads) {
    if (clocks.lane(read) != clocks.lane(step)) continue;
    if (clocks.place(step) > clocks.place(read)) read = step;
    return;
  }
  at.reads.push_back(step);
}

}  // namespace

AccessesByBuffer::AccessesByBuffer(const Program& program)
    : begin_(program.buffers().size() + 1, 0) {
  for (const Step& step : program.steps()) {
    for (const Access& access : step.accesses) ++begin_[index_of(access.view.buffer) + 1];
  }
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  entries_.resize(begin_.back());
  std::vector<std::size_t> next = begin_;
  for (std::uint32_t i = 0; i < program.steps().size(); ++i) {
    const std::vector<Access>& accesses = program.steps()[i].accesses;
    for (std::uint32_t k = 0; k < accesses.size(); ++k) {
      entries_[next[index_of(accesses[k].view.buffer)]++] = {StepId{i}, k};
    }
  }
}

void demand_access_order(Demands& demands, const AccessesByBuffer& accesses, CompareWork& work) {
  BufferCheck check(demands, work);
  for (std::uint32_t i = 0; i < demands.program.buffers().size(); ++i) {
    const std::span<const Entry> entries = accesses.of(BufferId{i});
    const bool written = std::any_of(entries.begin(), entries.end(),
                                     [&](Entry entry) { return writes(check.access_of(entry)); });
    if (written) check.run(BufferId{i}, entries);
  }
}

}  // namespace anabranch::check
