// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/rewrite/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "record/cuda/image/copy_box.h"
#include "record/cuda/rewrite/transfer_kernels.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::size_t kWord = sizeof(std::uint64_t);

Status refuse(const std::string& what, const std::string& why) {
  return Status(
      StatusCode::kNotRecordable,
      fmt::format("record: {} {}. The step runs unrecorded; strict=True raises.", what, why));
}

std::uint64_t align_up(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Pinned memory that a copy reads.
struct Reading {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t node = 0;
  bool is_table = false;
};

std::vector<Reading> readings_of(const GraphImage& image, std::span<const std::uint32_t> copies) {
  std::vector<Reading> all;
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    const NodeImage& there = image.nodes[node];
    if (there.source_bytes.empty()) continue;
    const std::uint64_t begin = source_of(there.copy) + source_shift(there.copy);
    all.push_back({begin, begin + there.source_bytes.size(), node,
                   std::binary_search(copies.begin(), copies.end(), node)});
  }
  std::sort(all.begin(), all.end(),
            [](const Reading& a, const Reading& b) { return a.begin < b.begin; });
  return all;
}

// The kernels in place of copies, and everything in the step's new numbers.
class TableReplacer {
 public:
  TableReplacer(const DeviceCode& code, CuDevicePtr bytes, StepGraph& step)
      : code_(code), next_bytes_(bytes), step_(step) {}

  std::vector<TableWrite> run(std::span<const std::uint32_t> copies) {
    const std::uint32_t count = static_cast<std::uint32_t>(step_.image.nodes.size());
    auto site = step_.sites.begin();
    for (std::uint32_t node = 0; node < count; ++node) {
      first_.push_back(static_cast<std::uint32_t>(nodes_.size()));
      const auto begin = site;
      while (site != step_.sites.end() && site->node == node) ++site;
      if (std::binary_search(copies.begin(), copies.end(), node)) {
        add_table(step_.image.nodes[node], {begin, site});
      } else {
        nodes_.push_back(std::move(step_.image.nodes[node]));
        facts_.push_back(step_.facts[node]);
        for (auto kept = begin; kept != site; ++kept) {
          sites_.push_back(*kept);
          sites_.back().node = first_.back();
        }
      }
    }
    first_.push_back(static_cast<std::uint32_t>(nodes_.size()));
    step_.image.nodes = std::move(nodes_);
    step_.facts = std::move(facts_);
    step_.sites = std::move(sites_);
    for (ParamWord& number : step_.numbers) number.node = first_[number.node];
    number_edges();
    return std::move(writes_);
  }

 private:
  // `sites`: its words', sorted by offset, and then its destination's, if that moves.
  void add_table(const NodeImage& copy, std::span<const Site> sites) {
    const bool moves = !sites.empty() && sites.back().operand == Operand::kDestination;
    const auto words = sites.first(sites.size() - (moves ? 1 : 0));
    const std::uint64_t size = copy.source_bytes.size();
    std::uint64_t begin = 0;
    for (std::size_t done = 0; done == 0 || done < words.size(); done += kTableWords) {
      const auto mine =
          words.subspan(done, std::min<std::size_t>(kTableWords, words.size() - done));
      const std::size_t next = done + mine.size();
      const std::uint64_t end = next < words.size() ? words[next].offset : size;
      add_piece(copy, moves ? &sites.back() : nullptr, mine, begin, end);
      begin = end;
    }
    next_bytes_ += align_up(size);
  }

  void add_piece(const NodeImage& copy, const Site* destination, std::span<const Site> words,
                 std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t shift = destination_shift(copy.copy) + begin;
    TableParams table;
    table.from = next_bytes_ + begin;
    table.to = copy.copy.dst_device + shift;
    table.bytes = end - begin;
    NodeImage& node = nodes_.emplace_back();
    facts_.emplace_back();
    if (destination) {
      add_site(offsetof(TableParams, to), destination->unit, destination->shift + shift);
    }
    for (const Site& word : words) {
      const std::uint32_t i = table.count++;
      table.places[i] = static_cast<std::uint32_t>(word.offset - begin);
      std::memcpy(&table.words[i], copy.source_bytes.data() + word.offset, kWord);
      add_site(offsetof(TableParams, words) + kWord * i, word.unit, word.shift);
    }
    node.handle = copy.handle;
    node.child_of = copy.child_of;
    node.type = CuNodeType::kKernel;
    node.is_ours = true;
    node.kernel = table_kernel(code_, table);
    add_write(destination, shift, words, table);
  }

  void add_write(const Site* destination, std::uint64_t shift, std::span<const Site> words,
                 const TableParams& table) {
    TableWrite write;
    write.node = static_cast<std::uint32_t>(nodes_.size() - 1);
    if (destination) {
      write.unit = destination->unit;
      write.begin = destination->shift + shift;
    }
    write.end = write.begin + table.bytes;
    if (table.count != 0) {
      write.first = write.begin + table.places[0];
      write.last = write.begin + table.places[table.count - 1] + kWord;
    }
    for (const Site& word : words) write.names.push_back(word.unit);
    std::sort(write.names.begin(), write.names.end());
    write.names.erase(std::unique(write.names.begin(), write.names.end()), write.names.end());
    writes_.push_back(std::move(write));
  }

  // In the parameters of the latest node.
  void add_site(std::size_t offset, std::uint32_t unit, std::uint64_t shift) {
    sites_.push_back({static_cast<std::uint32_t>(nodes_.size() - 1), Operand::kParam,
                      static_cast<std::uint32_t>(offset), unit, shift});
  }

  void number_edges() {
    std::vector<EdgeImage> edges;
    for (const EdgeImage& edge : step_.image.edges) {
      for (std::uint32_t from = first_[edge.from]; from < first_[edge.from + 1]; ++from) {
        for (std::uint32_t to = first_[edge.to]; to < first_[edge.to + 1]; ++to) {
          edges.push_back({from, to, edge.data});
        }
      }
    }
    std::sort(edges.begin(), edges.end(), [](const EdgeImage& a, const EdgeImage& b) {
      return std::pair(a.to, a.from) < std::pair(b.to, b.from);
    });
    step_.image.edges = std::move(edges);
  }

  const DeviceCode& code_;
  CuDevicePtr next_bytes_;
  StepGraph& step_;
  std::vector<std::uint32_t> first_;  // by old number, the new one; one more than there are
  std::vector<NodeImage> nodes_;
  std::vector<NodeFacts> facts_;
  std::vector<Site> sites_;
  std::vector<TableWrite> writes_;
};

Status check_destinations(const Driver& driver, std::span<const std::uint32_t> copies,
                          const GraphImage& image) {
  CuDevice device = 0;
  if (Status got = recorded("cuCtxGetDevice", driver.cuCtxGetDevice(&device)); !got.ok()) {
    return got;
  }
  for (const std::uint32_t node : copies) {
    const CuMemcpy3D& copy = image.nodes[node].copy;
    const auto here = is_here(driver, device, copy.dst_memory_type, copy.dst_device);
    if (!here.ok()) return here.error();
    if (*here) continue;
    return refuse(describe_node(image, node),
                  "copies bytes that belong to the step to memory that is not this device's");
  }
  return {};
}

// One behind the other, each aligned.
Result<std::unique_ptr<DeviceBytes>> keep_bytes(const Driver& driver,
                                                std::span<const std::uint32_t> copies,
                                                const GraphImage& image) {
  std::vector<std::byte> all;
  for (const std::uint32_t node : copies) {
    const auto& bytes = image.nodes[node].source_bytes;
    all.insert(all.end(), bytes.begin(), bytes.end());
    all.resize(align_up(all.size()));
  }
  return DeviceBytes::make(driver, all);
}

}  // namespace

Result<std::unique_ptr<DeviceBytes>> DeviceBytes::allocate(const Driver& driver,
                                                           std::uint64_t bytes) {
  std::unique_ptr<DeviceBytes> made(new DeviceBytes(driver, bytes));
  if (Status allocated = recorded("cuMemAlloc", driver.cuMemAlloc(&made->address_, bytes));
      !allocated.ok()) {
    made->address_ = 0;
    return allocated;
  }
  return made;
}

Result<std::unique_ptr<DeviceBytes>> DeviceBytes::make(const Driver& driver,
                                                       std::span<const std::byte> bytes) {
  auto made = allocate(driver, bytes.size());
  if (!made.ok()) return made;
  if (Status sent = recorded("cuMemcpyHtoD",
                             driver.cuMemcpyHtoD((*made)->address_, bytes.data(), bytes.size()));
      !sent.ok()) {
    return sent;
  }
  // Pageable memory may be on its way still, and launches run on other streams.
  if (Status there = recorded("cuStreamSynchronize", driver.cuStreamSynchronize(nullptr));
      !there.ok()) {
    return there;
  }
  return made;
}

DeviceBytes::~DeviceBytes() {
  if (address_) driver_.cuMemFree(address_);
}

Status check_tables(const GraphImage& image, std::span<const std::uint32_t> copies) {
  const Reading *furthest = nullptr, *furthest_table = nullptr;
  const auto readings = readings_of(image, copies);
  for (const Reading& reading : readings) {
    const Reading* const before = reading.is_table ? furthest : furthest_table;
    if (before && before->end > reading.begin) {
      return refuse(fmt::format("{} and {}", describe_node(image, before->node),
                                describe_node(image, reading.node)),
                    "read the same pinned memory, which may have held something else for each");
    }
    if (!furthest || reading.end > furthest->end) furthest = &reading;
    if (reading.is_table) furthest_table = &reading;
  }
  return {};
}

Result<Tables> replace_tables(const Driver& driver, const DeviceCode* code,
                              std::span<const std::uint32_t> copies, StepGraph& step) {
  if (copies.empty()) return Tables{};
  if (!code) {
    return refuse(describe_node(step.image, copies.front()),
                  "copies addresses from the host, which takes device code to be set again: a "
                  "library built with nvcc, and a driver of 12.4 or newer");
  }
  if (Status here = check_destinations(driver, copies, step.image); !here.ok()) return here;
  auto bytes = keep_bytes(driver, copies, step.image);
  if (!bytes.ok()) return bytes.error();
  Tables tables;
  tables.writes = TableReplacer(*code, (*bytes)->address(), step).run(copies);
  tables.bytes = *std::move(bytes);
  return tables;
}

}  // namespace anabranch::cuda
