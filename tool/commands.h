// SPDX-License-Identifier: Apache-2.0
// The commands of `anabranch`, each a function that answers what it would print: main.cpp parses
// arguments and prints, the library does the work.
// Failure:   a Status where a command cannot do what it was asked.
#pragma once

#include <cstdint>
#include <string>

#include "anabranch/anabranch.h"

namespace anabranch::tool {

// What is on, what is off and why; as text or as JSON.
std::string doctor(bool as_json);

// Where a path is read, "-" is standard input.

// A plan file as text, or the summary of a trace in Chrome's JSON format.
Result<std::string> show(const std::string& path);

// A plan file as a page: HTML that fetches nothing.
Result<std::string> show_page(const std::string& path);

// One line about a plan file that reads, verifies and holds no race, and one for each report of its
// program (find_reports); a Status with all of them if one is an error.
Result<std::string> check(const std::string& path, bool strict = false);

struct RunOptions {
  bool null_regions = false;  // every region does nothing
  std::uint32_t launches = 100;
  std::uint32_t lanes = 0;  // as HostOptions::max_lanes
  // What buffers and arena may take together: a plan file can ask for any amount.
  std::uint64_t max_memory_bytes = std::uint64_t{1} << 30;
};

// Launches the plan on the host device; answers a table of times.
Result<std::string> run(const std::string& path, const RunOptions& options);

// Like run, with a trace of all launches written to `out_path` as Chrome's JSON.
Result<std::string> trace(const std::string& path, const RunOptions& options,
                          const std::string& out_path);

struct Comparison {
  bool equal = false;
  std::string text;
};

// Where two plans differ: program, order, waits, arena.
Result<Comparison> compare(const std::string& path, const std::string& other_path);
Comparison compare_plans(const Plan& plan, const Plan& other);

// The folder of the package config of the installation that this program lies in.
Result<std::string> find_cmake_folder();

}  // namespace anabranch::tool
