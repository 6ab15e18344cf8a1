// SPDX-License-Identifier: Apache-2.0
// What twenty_steps.cpp and from_file.cpp share: the work behind the names of the steps, and what
// must come out. A plan file holds names, never code: who loads one supplies the functions.
#pragma once

#include <anabranch/anabranch.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

inline constexpr std::uint32_t kItems = 512;
inline constexpr std::uint64_t kBytes = kItems * sizeof(std::uint32_t);
inline constexpr std::uint32_t kLinks = 8;  // steps of each branch

using Numbers = std::array<std::uint32_t, kItems>;
struct alignas(64) Buffers {
  Numbers x, y;
  std::uint64_t total;
};

// A region is called with its context, and with the buffer of each access of its step, in order.
template <typename T>
T& buffer(const anabranch::RegionCall* call, std::uint32_t access) {
  return *static_cast<T*>(call->buffers[access]);
}

// One function for many steps: the context tells them apart.
struct Link {
  std::uint32_t factor = 0, addend = 0;
  std::uint32_t operator()(std::uint32_t value) const { return value * factor + addend; }
};

inline std::int32_t run_link(void* context, const anabranch::RegionCall* call) {
  const Link& link = *static_cast<const Link*>(context);
  for (std::uint32_t i = 0; i < kItems; ++i) {
    buffer<Numbers>(call, 1)[i] = link(buffer<Numbers>(call, 0)[i]);
  }
  return 0;
}

inline std::int32_t run_join(void*, const anabranch::RegionCall* call) {
  for (std::uint32_t i = 0; i < kItems; ++i) {
    buffer<Numbers>(call, 2)[i] = buffer<Numbers>(call, 0)[i] ^ buffer<Numbers>(call, 1)[i];
  }
  return 0;
}

inline std::int32_t run_sum(void*, const anabranch::RegionCall* call) {
  for (const std::uint32_t value : buffer<Numbers>(call, 0))
    buffer<std::uint64_t>(call, 1) += value;
  return 0;
}

// The contexts lie in `links`, which must outlive every recording made with the table.
struct Links {
  Link prepare{3, 1};
  std::array<Link, kLinks> left, right;
  Links() {
    for (std::uint32_t i = 0; i < kLinks; ++i) {
      left[i] = {2 * i + 3, i};
      right[i] = {2 * i + 5, ~i};
    }
  }
};

inline anabranch::RegionTable make_regions(Links& links) {
  anabranch::RegionTable table{
      {"prepare", {run_link, &links.prepare}}, {"join", {run_join}}, {"sum", {run_sum}}};
  for (std::uint32_t i = 0; i < kLinks; ++i) {
    table["left " + std::to_string(i)] = {run_link, &links.left[i]};
    table["right " + std::to_string(i)] = {run_link, &links.right[i]};
  }
  return table;
}

// The same without streams, plans and recordings.
inline bool is_right(const Links& links, const Buffers& buffers) {
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < kItems; ++i) {
    std::uint32_t left = links.prepare(buffers.x[i]), right = left;
    for (const Link& link : links.left) left = link(left);
    for (const Link& link : links.right) right = link(right);
    if (buffers.y[i] != (left ^ right)) return false;
    total += buffers.y[i];
  }
  return buffers.total == total;
}

// Launches with other buffers each time; nothing is recorded again for them.
inline bool launch_many(const anabranch::Recording& recording, const Links& links) {
  static std::array<Buffers, 7> sets;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    Buffers& b = sets[i % sets.size()];
    for (std::uint32_t k = 0; k < kItems; ++k) b.x[k] = i * 7919 + k;
    // In the order in which the program declared its buffers.
    const anabranch::Binding bindings[] = {
        {&b.x, kBytes}, {&b.y, kBytes}, {&b.total, sizeof b.total}};
    const anabranch::Result<anabranch::Ticket> ticket = anabranch::launch(recording, bindings);
    if (!ticket || !is_right(links, b)) {
      std::printf("launch %u: %s\n", i, ticket ? "wrong result" : ticket.error().message().c_str());
      return false;
    }
  }
  return true;
}
