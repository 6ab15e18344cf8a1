// SPDX-License-Identifier: Apache-2.0
// Random valid programs for tests and benchmarks; no part of the library.
// Ownership: values.
// Threads:   pure: the same seed and options give the same program on every machine.
// Failure:   none; every program is one that ProgramBuilder accepts.
// Edges:     buffers that no step came to use are there and unused.
//
// Shaped like models: a stream keeps working for a while, a temporary is read soon after it was
// written and mostly by its own stream, now and then one travels to another.
#pragma once

#include <cstdint>

#include "anabranch/program.h"

namespace anabranch {

// Shares are out of 100.
struct RandomProgramOptions {
  std::uint32_t steps = 100;
  std::uint32_t streams = 4;       // the ambient one included
  std::uint32_t callers = 6;       // inputs, outputs and constants, in turn
  std::uint32_t events = 4;        // used only if `syncs` is not 0
  std::uint32_t switches = 20;     // steps on another stream than the one before
  std::uint32_t travels = 15;      // reads of what any stream wrote
  std::uint32_t from_caller = 15;  // reads of a buffer of the caller
  std::uint32_t in_place = 10;     // steps that write what exists
  std::uint32_t views = 20;        // accesses of a strided part (never the first write of a buffer)
  std::uint32_t syncs = 0;         // record_event, wait_event; one in eight is a synchronize
  std::uint32_t others = 5;        // steps that are copies, fills or host calls
  std::uint32_t window = 8;        // of how many last written buffers of a stream reads are drawn
  std::uint64_t min_bytes = 64;
  std::uint64_t max_bytes = 1 << 20;  // sizes spread evenly over the powers of two between
};

Program random_program(std::uint64_t seed, const RandomProgramOptions& options = {});

// Numbers that are the same on every machine (splitmix64).
class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Below `end`, which is not 0. The bias is that of 64 bits, hence none that a test can see.
  std::uint64_t below(std::uint64_t end) { return next() % end; }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

// A strided part of a buffer: rows and columns cut from a matrix of 4-byte items, some reversed,
// some transposed. The whole buffer where that has under 16 bytes.
View random_view(RandomNumbers& random, BufferId buffer, std::uint64_t size_bytes);

}  // namespace anabranch
