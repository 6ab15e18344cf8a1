// SPDX-License-Identifier: Apache-2.0
// A captured step made real: executable graphs whose addresses are arguments.
// Ownership: owns its graphs and executables; the captures it was made from may be destroyed. The
//            modules of the kernels must stay loaded.
// Threads:   make() for the current context. Executables are leased one launch at a time; the rest
//            is immutable.
// Failure:   make() is a Status and leaves nothing behind.
// Edges:     what two captures agree on is frozen: sizes, numbers, memory that belongs to no unit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/capture.h"
#include "anabranch/plan.h"
#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "device/cuda/driver.h"
#include "record/cuda/arena/arena_parts.h"
#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/arena/source_rule.h"
#include "record/cuda/image/capture_marks.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/node_accesses.h"
#include "record/cuda/sites/sites.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// One of the two captures of a step, and what was allocated while it ran or was given to it. Its
// image, read as soon as it had ended: what it copies from pinned memory may be there no longer
// when the other one has. Without one, the graph is read when the recording is made.
struct Capture {
  CuGraph graph = nullptr;
  std::span<const CaptureAllocation> allocations;
  const GraphImage* image = nullptr;
  const Notes* notes = nullptr;  // of one of the two at most
};

// Memory of the caller that a launch is given: any address with this alignment. Given memory that
// no node names is no slot.
struct CudaSlot {
  std::uint32_t unit = 0;
  std::uint32_t allocation = 0;  // the last of those that are the unit
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 0;  // what both captures had, 512 at most
};

// What every executable of a recording does, and where its addresses are. A launch gives one
// address a source: the slots, and after them the parts of the arena. A site's `unit` is its source
// here, and its `shift` contains where a temporary lies in its part, or in the slot that lends it
// bytes.
struct Repointing {
  GraphImage image;
  bool is_reordered = false;              // the image has other edges than the capture
  std::vector<Site> sites;                // sorted by node
  std::vector<std::uint32_t> first_site;  // by node, one more than there are
  std::vector<std::uint32_t> nodes;       // that name a source, source by source
  std::vector<std::uint32_t> first_node;  // by source, one more than there are
  std::size_t source_count() const { return first_node.size() - 1; }
  std::uint32_t most_fields = 0;          // of any kernel
  std::vector<std::uint32_t> with_bytes;  // sources that have any
  CuContext context = nullptr;
  bool mapped_memory = false;  // see CudaRecordOptions
  // Memory of the kind that launches give, as large as any of them touches, for the copies and
  // fills of the driver's that are made anew: each keeps the kind of memory that it was
  // instantiated with, captures may have another kind than launches, and theirs may be gone.
  CuDevicePtr copy_room = 0;
};

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
// instantiated as if device code were to launch it, which nobody does. Then they run as fast as
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
  Result<CuGraphNode> find_in_clone(CuGraphNode node) const;
  Status make_nodes(const Kind& kind);
  void move_transfers();
  Status drop_edges();
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

struct CudaRecordOptions {
  std::uint32_t executables = 1;  // more let more launches at settled addresses run at once
  // With it copies and fills are kernels, which take memory of any kind, and there are updating
  // executables; without it the driver's nodes stay, and all are set from the host.
  const DeviceCode* device_code = nullptr;
  std::uint32_t updating_executables = 2;  // launches on so many streams run at once
  bool repoint_in_two = false;             // kernels, also where one would do; see CudaExec
  // Updating executables of so many nodes are launchable, and the others of so many: about where
  // the one is done as early either way, and the other takes the CPU as long, on an H200.
  std::uint32_t launchable_updating = 400;
  std::uint32_t launchable_settled = 3000;
  // Up to so many nodes are set from the host. About where the two cost the same on an H200.
  std::uint32_t few_nodes = 20;
  // After so many launches at the same addresses all nodes are set from the host, once, and the
  // launches that follow cost what a frozen graph does.
  std::uint32_t settle_after = 10;
  // Keeps what the first capture had where bytes differ that are no address. For a caller that
  // goes on to compare launches of both captures' recordings with the step itself.
  bool accept_unsure = false;
  // Why addresses in tensor maps must stay as they are, if they must (device/cuda/tensor_maps.h): a
  // kernel with such an address where a map may lie is refused.
  std::string why_opaque_maps{};
  // Where one of the captures has notes: nodes that may run side by side do, on so many lanes.
  std::uint32_t lanes = 1;
  std::uint64_t ahead_bytes = kAheadBytes;  // see copy_window.h
  // Launches give memory that is mapped (cuMemMap), else memory of cuMemAlloc. The driver's copies
  // take the one or the other.
  bool mapped_memory = false;
  // See arena_parts.h. Whoever has one block for the arena takes one part, by the largest number.
  std::uint64_t least_part_bytes = kLeastPartBytes;
};

// How launches went; for reports.
struct CudaLaunchCounts {
  std::atomic<std::uint64_t> unchanged{0};  // no node had to be set
  std::atomic<std::uint64_t> from_host{0};
  std::atomic<std::uint64_t> from_device{0};
};

class CudaRecording {
 public:
  // `kinds` says of each allocation what it is; an address that was given is a slot even where the
  // capture's allocator gave it out again. Device code must outlive the recording. Refused where
  // two units would share bytes and nothing orders them (check_places.h).
  static Result<std::shared_ptr<CudaRecording>> make(const Driver& driver, const Capture& first,
                                                     const Capture& second,
                                                     std::span<const UnitKind> kinds,
                                                     const CudaRecordOptions& options = {});

  std::span<const CudaSlot> slots() const { return slots_; }
  // As it was planned, before it was cut; a launch gives memory for the parts. What fresh units
  // lend is not in it.
  const ArenaLayout& arena() const { return arena_; }
  std::vector<std::uint64_t> part_bytes() const;
  std::span<const SourceRule> source_rules() const { return source_rules_; }  // by source
  // Nodes that name a source.
  std::uint32_t node_count(std::size_t source) const {
    return repointing_.first_node[source + 1] - repointing_.first_node[source];
  }
  // Bytes that differ between the captures and are no address, see FoundSites; words of them.
  std::uint32_t unsure() const { return unsure_; }
  std::span<const Site> sites() const { return repointing_.sites; }
  const GraphImage& image() const { return repointing_.image; }
  std::uint32_t lanes() const { return lanes_; }  // that are used; 1 where the captured order stays
  std::uint32_t node_count() const {
    return static_cast<std::uint32_t>(repointing_.image.nodes.size());
  }
  const CudaRecordOptions& options() const { return options_; }
  std::span<const std::unique_ptr<CudaExec>> executables() const { return executables_; }
  std::span<const std::unique_ptr<CudaExec>> updating() const { return updating_; }
  CudaLaunchCounts& counts() { return counts_; }
  const HeldMemory& held() const { return held_; }

 private:
  CudaRecording(const Driver& driver, const CudaRecordOptions& options)
      : driver_(driver), options_(options) {}
  Status make_executables(CuGraph original);
  Status make_and_weigh_executables(CuGraph original);
  Status discover(const Capture& first, const Capture& second, std::span<const UnitKind> kinds);
  Result<FoundSites> find(const GraphImage& first, const GraphImage& second,
                          const UnitTable& units);
  Result<Tables> replace(FoundSites& found, GraphImage& image);
  Status reorder(GraphImage& image, std::span<const Site> sites, std::span<const TableWrite> tables,
                 std::span<const Unit> units);
  // Gives units their places, and sites their sources, which name units.
  Status place(const GraphImage& image, const Tenants& tenants, std::span<const UnitKind> kinds,
               std::span<const Site> sites, std::span<const TableWrite> tables);
  void name_slots(const Tenants& tenants, std::span<const UnitKind> kinds,
                  std::span<const Site> sites);
  void list_sources(std::span<const std::uint64_t> part_bytes);
  void name_sources(std::span<const ArenaParts::PartOffset> places, std::span<const Loan> loans,
                    std::vector<Site>& sites) const;
  void index_sites();

  const Driver& driver_;
  Repointing repointing_;
  std::vector<CudaSlot> slots_;
  ArenaLayout arena_;
  std::vector<SourceRule> source_rules_;
  std::uint32_t unsure_ = 0;
  std::uint32_t lanes_ = 1;
  const CudaRecordOptions options_;
  HeldMemory held_;
  std::unique_ptr<DeviceBytes> table_bytes_;  // goes after the executables that read it
  std::vector<std::unique_ptr<CudaExec>> executables_;
  std::vector<std::unique_ptr<CudaExec>> updating_;
  CudaLaunchCounts counts_;
};

}  // namespace anabranch::cuda
