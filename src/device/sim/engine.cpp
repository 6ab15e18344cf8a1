// SPDX-License-Identifier: Apache-2.0
#include "device/sim/engine.h"

#include <algorithm>

namespace anabranch::sim {
namespace {

constexpr std::size_t kMaxFinished = 1'000'000;

}  // namespace

WorkRef Engine::add(Work work, const std::vector<After>& after) {
  auto pending = std::make_unique<Pending>();
  pending->work = std::move(work);
  pending->mark = std::make_shared<Mark>();
  pending->begin_ns = now_ns_;
  for (const auto& [first, at_start, waits] : after) {
    if (!first) continue;
    const bool may_begin = at_start ? first->begun : first->done;
    const bool may_run = first->done || (at_start && !waits);
    if (may_begin) {
      pending->begin_ns = std::max(pending->begin_ns, at_start ? first->start_ns : first->end_ns);
    }
    pending->to_begin += may_begin ? 0 : 1;
    pending->to_run += may_run ? 0 : 1;
    if (!may_begin || !may_run) first->next.push_back({pending.get(), at_start, waits});
  }
  WorkRef mark = pending->mark;
  Pending& added = *pending;
  waiting_.emplace(&added, std::move(pending));
  settle(added);
  return mark;
}

// Lets it begin, and what may begin with it; and takes it to what is ready.
void Engine::settle(Pending& pending) {
  Mark& mark = *pending.mark;
  if (!mark.begun && pending.to_begin == 0) {
    mark.begun = true;
    mark.start_ns = pending.begin_ns;
    for (const auto& [next, at_start, _] : mark.next) {
      if (!at_start) continue;
      next->begin_ns = std::max(next->begin_ns, mark.start_ns);
      --next->to_begin;
      settle(*next);
    }
  }
  if (!mark.begun || pending.to_run > 0) return;
  ready_.push_back(std::move(waiting_.extract(&pending).mapped()));
}

bool Engine::run_one() {
  if (ready_.empty()) return false;
  std::swap(ready_[random_() % ready_.size()], ready_.back());
  const std::unique_ptr<Pending> pending = std::move(ready_.back());
  ready_.pop_back();
  if (pending->work.run) pending->work.run();
  finish(*pending);
  return true;
}

void Engine::finish(Pending& pending) {
  Mark& mark = *pending.mark;
  const Work& work = pending.work;
  const bool timed = work.duration_ns > 0 && jitter_ns_ > 0;
  mark.end_ns = mark.start_ns + work.duration_ns + (timed ? random_() % (jitter_ns_ + 1) : 0);
  mark.done = true;
  latest_ns_ = std::max(latest_ns_, mark.end_ns);
  if (finished_.size() < kMaxFinished) {
    finished_.push_back({work.name, work.stream, mark.start_ns, mark.end_ns});
  }
  for (const auto& [next, at_start, waits] : mark.next) {
    if (at_start && !waits) continue;
    if (!at_start) {
      next->begin_ns = std::max(next->begin_ns, mark.end_ns);
      --next->to_begin;
    }
    --next->to_run;
    settle(*next);
  }
  mark.next.clear();
}

void Engine::run_until(const WorkRef& work) {
  while (!is_done(work) && run_one()) {
  }
  if (work) now_ns_ = std::max(now_ns_, work->end_ns);
}

void Engine::run_all() {
  while (run_one()) {
  }
  now_ns_ = std::max(now_ns_, latest_ns_);
}

}  // namespace anabranch::sim
