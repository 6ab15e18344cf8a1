// SPDX-License-Identifier: Apache-2.0
// One executable graph of a recording, and what its nodes hold.
// Ownership: owns its graph, executable and tables; borrows what it was made from (Repointing).
// Threads:   leased one launch at a time; all but try_lease() belongs to the lessee.
// Failure:   a Status of a driver call. After a failed set_addresses() no word counts as known, and
//            the next launch sets every node.
// Edges:     the first launch sets all nodes, whatever addresses the captures had.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "device/cuda/driver.h"
#include "record/cuda/exec/repointing.h"

namespace anabranch::cuda {

// What launches through one executable remember of one another. What was given last is not always
// what the nodes hold: a launch from the device goes through another executable.
struct LaunchMemory {
  std::vector<std::uint64_t> addresses;  // by source, as given
  std::vector<std::uint32_t> order;      // sources that have bytes; by address where that is known
  std::vector<std::uint32_t> spare;      // as many, for sorting them
  std::uint64_t launches = 0;            // and refused ones
  const std::uint64_t* next_table = nullptr;  // of the updating executable that was used last
  std::uint32_t repeats = 0;                  // how often in a row next to nothing had moved
  bool is_known = false;                      // the addresses are right and the order is theirs
  bool is_in_turn = false;                    // the order is that of numbers, and all have bytes
  bool is_set = false;                        // this executable's nodes hold these addresses
  void forget() noexcept;
};

// What a recording keeps between launches, in bytes.
struct HeldMemory {
  std::uint64_t device = 0;  // tables
  std::uint64_t host = 0;    // pinned
  // By how much the device's free memory fell beside that while the executables were made. The
  // driver hands memory out in large pieces, and others may take some meanwhile.
  std::uint64_t driver = 0;
};

// One executable graph and the addresses that its nodes hold.
//
// Made with an updater it is an updating one: one kernel at its root, or two where there are more
// than kMostRepointed addresses or places for them, write all addresses into the nodes behind
// them, from a table that each launch has in the host's memory, so that a launch costs the host the
// same however many nodes there are. Made without, the host sets the nodes that moved, 0.3 us
// each.
//
// Nodes that device code may update run 17 ns slower each, unless the executable is launchable:
// instantiated as if device code were to launch it, which none does. Then they run as fast as
// others, and each launch takes some 4 us longer. So large graphs are made launchable.
class CudaExec {
 public:
  static constexpr std::uint64_t kUnset = ~std::uint64_t{0};

  struct Kind {
    const DeviceCode::Updater* updater = nullptr;
    bool repoint_in_two = false;
    bool is_launchable = false;  // where the driver agrees
  };
  static Result<std::unique_ptr<CudaExec>> make(const Driver& driver, CuGraph original,
                                                const Repointing& repointing, const Kind& kind);
  // An event ahead of all nodes, and one behind each.
  struct Stamps {
    CuEvent before = nullptr;
    std::vector<CuEvent> behind;  // by node
  };
  // The same graph with events, of one without an updater that nobody launches meanwhile; see
  // timed_exec.h.
  static Result<std::unique_ptr<CudaExec>> make_stamped(const CudaExec& of,
                                                        std::span<const std::uint64_t> addresses,
                                                        const Stamps& stamps);
  ~CudaExec();
  CudaExec(const CudaExec&) = delete;
  CudaExec& operator=(const CudaExec&) = delete;

  bool try_lease() noexcept { return !leased_.exchange(true, std::memory_order_acquire); }
  void release() noexcept { leased_.store(false, std::memory_order_release); }

  // For the lessee. Gives the nodes these addresses, by source; only nodes that name a source which
  // moved are touched. Answers how many there were. Affects later launches alone. An updating one
  // waits for launches that are more than half of kHostTables back, which read their tables
  // until they have ended. After a failure all addresses count as unknown.
  Result<std::uint32_t> set_addresses(std::span<const std::uint64_t> addresses);
  // The same where nothing but these sources can have moved; not for an updating one.
  Result<std::uint32_t> set_addresses(std::span<const std::uint64_t> addresses,
                                      std::span<const std::uint32_t> sources);
  // How many nodes that would be, or more where a node names several that moved. Stops counting
  // above `limit`.
  std::uint32_t count_moved(std::span<const std::uint64_t> addresses,
                            std::uint32_t limit) const noexcept;
  // The driver has launches of one executable run one after the other, on whatever streams.
  Status launch(CuStream stream);
  CuStream last_stream() const { return last_stream_; }  // null before the first launch
  // Where an updating one writes the addresses of its next launch.
  const std::uint64_t* next_table() const {
    return tables_ + launches_ % kHostTables * addresses_.size();
  }

  LaunchMemory& memory() { return memory_; }
  // The driver's is not known of one alone.
  const HeldMemory& held() const { return held_; }

 private:
  CudaExec(const Driver& driver, const Repointing& repointing);
  Status clone_nodes(CuGraph original);
  Status drop_other_nodes();
  Result<CuGraphNode> find_in_clone(CuGraphNode node) const;
  Status make_nodes(const Kind& kind);
  void move_transfers();
  Status drop_edges();
  Status clone_stamped(CuGraph of, std::span<const std::uint64_t> addresses, const Stamps& stamps);
  Status move_transfers(std::span<const std::uint64_t> addresses);
  Status put_stamps(const Stamps& stamps);
  Status wait_for_stamps(std::span<const CuGraphNode> behind);
  std::span<const std::uint32_t> nodes_of(std::uint32_t source) const noexcept;
  void watch_sources();
  void list_residents();
  Status note_reallocated(std::span<const std::uint64_t> addresses);
  void mark_moved(std::uint32_t node);
  void note_moved(std::span<const std::uint64_t> addresses, std::span<const std::uint32_t> sources);
  void note_moved(std::uint32_t source, std::uint64_t address);
  Result<std::uint32_t> set_moved();
  Status write_table(std::span<const std::uint64_t> addresses);
  Status mark_half(CuStream stream);
  void write_sites(std::uint32_t node);
  Status set_node(std::uint32_t node);
  Status set_kernel(std::uint32_t node);
  // `updated`: what all else comes behind; null where device code sets no node.
  Status prepare_updates(const DeviceCode::Updater& updater, bool in_two, CuGraphNode* updated);
  bool has_odd_site(std::uint32_t node) const;
  Status make_updatable(std::uint32_t node, std::vector<SiteUpdate>& updates);
  Status allocate_tables(const std::vector<SiteUpdate>& updates);
  Status add_repoint(const DeviceCode::Updater& updater, CuDevicePtr host_tables,
                     std::uint64_t updates, CuGraphNode* updated);
  Status add_fetch_and_update(const DeviceCode::Updater& updater, CuDevicePtr host_tables,
                              std::uint64_t updates, CuGraphNode* updated);
  Status add_kernel(CuKernelNodeParams kernel, void* params, CuGraphNode before, CuGraphNode* made);
  Status put_before_roots(CuGraphNode updated);
  Status instantiate(bool is_launchable);
  Status upload();

  const Driver& driver_;
  const Repointing& repointing_;
  CuGraph graph_ = nullptr;
  CuGraphExec exec_ = nullptr;
  std::vector<NodeImage> nodes_;          // handles in our graph, operands as the nodes hold them
  std::vector<std::uint64_t> addresses_;  // by source; in an updating one of those watched alone
  bool are_known_ = false;                // whether nodes hold these; else a launch sets all
  std::vector<std::uint32_t> moved_;      // nodes to set
  std::vector<bool> is_moved_;
  LaunchRoom room_;  // scratch
  LaunchMemory memory_;
  std::vector<bool> by_device_;         // nodes that the updater sets
  std::vector<std::uint32_t> watched_;  // in an updating one: sources of nodes that the host sets
  // Sources of the driver's copies and fills. These nodes mean allocations: where one was freed and
  // another made at its address, a launch that has not set them anew fails and the context is lost.
  struct Resident {
    std::uint32_t source = 0;
    unsigned long long allocation = 0;  // as the driver counts them, when its nodes were set
    std::vector<std::uint32_t> nodes{};
  };
  Result<bool> may_be_reallocated(Resident& resident, std::uint64_t address);
  std::vector<Resident> residents_;
  // Of an updating one. In device memory the count of launches, the updates and the table; in the
  // host's, pinned, the tables; and behind the last launches that read each half of these, an
  // event.
  CuDevicePtr launches_done_ = 0, updates_ = 0, table_ = 0;
  HeldMemory held_;
  std::uint64_t* tables_ = nullptr;
  CuEvent half_read_[2] = {};
  std::uint64_t launches_ = 0;
  bool has_table_ = false;  // for the next launch
  CuStream last_stream_ = nullptr;
  std::atomic<bool> leased_{false};
};

// A lease for a scope, where nobody has one.
class TryLease {
 public:
  explicit TryLease(CudaExec& exec) noexcept : exec_(exec.try_lease() ? &exec : nullptr) {}
  ~TryLease() {
    if (exec_) exec_->release();
  }
  TryLease(const TryLease&) = delete;
  TryLease& operator=(const TryLease&) = delete;
  explicit operator bool() const noexcept { return exec_; }

 private:
  CudaExec* const exec_;
};

}  // namespace anabranch::cuda
