// SPDX-License-Identifier: Apache-2.0
// Work that waits for other work: what is ready runs in an order chosen by a seed, in virtual time.
// Ownership: the engine owns work until it has run; a WorkRef is a mark that outlives it.
// Threads:   one at a time; the Machine's lock.
// Failure:   none: work says for itself what went wrong.
// Edges:     a null WorkRef is work that is done. Work may add work while it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/sim/sim_driver.h"

namespace anabranch::sim {

struct Pending;

struct Mark {
  bool begun = false, done = false;
  std::uint64_t start_ns = 0, end_ns = 0;
  struct Next {
    Pending* work;
    bool at_start, waits;
  };
  std::vector<Next> next;
};
using WorkRef = std::shared_ptr<Mark>;

// A programmatic edge lets the second begin when the first has begun. Where the second waits for
// the first before it reads, that moves its virtual time only. Where it does not, it may run before
// the first does, and so may what comes behind it.
struct After {
  WorkRef work;
  bool at_start = false;
  bool waits = true;
};

struct Work {
  std::string name;
  cuda::CuStream stream = nullptr;
  std::uint64_t duration_ns = 0;
  std::function<void()> run;
};

struct Pending {
  Work work;
  WorkRef mark;
  std::uint64_t begin_ns = 0;
  std::size_t to_begin = 0, to_run = 0;  // so many others it waits for
};

class Engine {
 public:
  Engine(std::uint64_t seed, std::uint64_t jitter_ns) : random_(seed), jitter_ns_(jitter_ns) {}

  WorkRef add(Work work, const std::vector<After>& after);
  // Runs one piece that is ready; false if there is none, and then nothing is left.
  bool run_one();
  void run_until(const WorkRef& work);
  void run_all();

  std::uint64_t now_ns() const { return now_ns_; }
  const std::vector<WorkRecord>& finished() const { return finished_; }

 private:
  void settle(Pending& pending);
  void finish(Pending& pending);

  std::mt19937_64 random_;
  const std::uint64_t jitter_ns_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t latest_ns_ = 0;
  std::vector<std::unique_ptr<Pending>> ready_;
  std::unordered_map<Pending*, std::unique_ptr<Pending>> waiting_;
  std::vector<WorkRecord> finished_;
};

inline bool is_done(const WorkRef& work) { return !work || work->done; }

}  // namespace anabranch::sim
