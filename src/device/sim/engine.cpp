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
  pending->ready_ns = now_ns_;
  for (const auto& [first, at_start] : after) {
    if (!first) continue;
    if (first->done) {
      pending->ready_ns = std::max(pending->ready_ns, at_start ? first->start_ns : first->end_ns);
      continue;
    }
    first->next.push_back({pending.get(), at_start});
    ++pending->waits_for;
  }
  WorkRef mark = pending->mark;
  if (pending->waits_for == 0) {
    ready_.push_back(std::move(pending));
  } else {
    Pending* const key = pending.get();
    waiting_.emplace(key, std::move(pending));
  }
  return mark;
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
  mark.start_ns = pending.ready_ns;
  mark.end_ns = mark.start_ns + work.duration_ns + (timed ? random_() % (jitter_ns_ + 1) : 0);
  mark.done = true;
  latest_ns_ = std::max(latest_ns_, mark.end_ns);
  if (finished_.size() < kMaxFinished) {
    finished_.push_back({work.name, work.stream, mark.start_ns, mark.end_ns});
  }
  for (const auto& [next, at_start] : mark.next) {
    next->ready_ns = std::max(next->ready_ns, at_start ? mark.start_ns : mark.end_ns);
    if (--next->waits_for > 0) continue;
    ready_.push_back(std::move(waiting_.extract(next).mapped()));
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
