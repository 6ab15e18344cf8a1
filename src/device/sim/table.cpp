// SPDX-License-Identifier: Apache-2.0
// The table's functions, and what a test sees of the simulated driver.
#include <cstdio>
#include <cstdlib>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

// A table function with the parameters of Machine's member.
template <CallId call, auto member>
struct Entry;
template <CallId call, typename... Args, CuResult (Machine::*member)(Args...)>
struct Entry<call, member> {
  static CuResult run(Args... args) {
    Machine* const machine = Machine::active;
    if (!machine) return CuResult::kDeinitialized;
    return machine->enter(call, member, args...);
  }
};

void fill_table(cuda::Driver& table) {
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  table.name = Entry<CallId::name, &Machine::name>::run;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
}

// An older driver lacks what a newer one has.
void drop_features(cuda::Driver& table, int version) {
#define ANABRANCH_CUDA_FEATURE(name, text, oldest)                                  \
  if (version < (oldest)) {                                                         \
    table.off[static_cast<std::size_t>(cuda::Feature::name)] = "the driver is old"; \
  }
#include "device/cuda/driver_features.inc"
#undef ANABRANCH_CUDA_FEATURE
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  if (!table.has(cuda::Feature::feature)) table.name = nullptr;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
}

void drain(Machine& machine) {
  // Nothing that is still queued may touch what the test has taken down.
  machine.sticky_ = CuResult::kDeinitialized;
  machine.engine_.run_all();
}

}  // namespace

Machine* Machine::active = nullptr;

std::uintptr_t next_handle() {
  static std::uintptr_t next = 0x5500'0000'0000;
  return next += 0x40;
}

std::string_view call_name(CallId call) {
  switch (call) {
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  case CallId::name:                                            \
    return #name;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
  }
  return "";
}

std::vector<ParamLayout> layout_of(std::initializer_list<std::size_t> sizes) {
  std::vector<ParamLayout> layout;
  std::size_t end = 0;
  for (const std::size_t bytes : sizes) {
    std::size_t alignment = 8;
    while (alignment > 1 && bytes % alignment != 0) alignment /= 2;
    const std::size_t offset = (end + alignment - 1) / alignment * alignment;
    layout.push_back({offset, bytes});
    end = offset + bytes;
  }
  return layout;
}

Machine::Machine(const SimOptions& options)
    : options_(options),
      memory_(options.device_bytes, options.device_count),
      engine_(options.seed, options.jitter_ns),
      devices_(static_cast<std::size_t>(options.device_count)) {
  fill_table(table_);
  drop_features(table_, options.driver_version);
  table_.version = options.driver_version;
  for (int i = 0; i < options.device_count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    device.handle = reinterpret_cast<CuContext>(next_handle());
    device.ordinal = i;
    legacy_[i].device = &device;
    legacy_[i].handle = legacy_stream();
    legacy_[i].legacy = true;
  }
}

Machine::~Machine() { drain(*this); }

SimDriver::SimDriver(const SimOptions& options) : machine_(std::make_unique<Machine>(options)) {
  if (Machine::active) {
    std::fputs("a process can have one SimDriver at a time\n", stderr);
    std::abort();
  }
  Machine::active = machine_.get();
}

SimDriver::~SimDriver() { Machine::active = nullptr; }

const cuda::Driver& SimDriver::table() const { return machine_->table_; }

void SimDriver::add_kernel(Kernel kernel) {
  const std::lock_guard lock(machine_->mutex_);
  Kernel& kept = machine_->kernels_.emplace_back(std::move(kernel));
  machine_->kernel_of_name_[kept.name] = &kept;
}

std::string SimDriver::make_image(std::initializer_list<std::string_view> names) {
  std::string image = ".version 7.0\n";
  for (const std::string_view name : names) image += ".entry " + std::string(name) + "\n";
  return image;
}

void SimDriver::run_until_idle() {
  const std::lock_guard lock(machine_->mutex_);
  machine_->engine_.run_all();
  machine_->check_damage();
}

std::uint64_t SimDriver::now_ns() const {
  const std::lock_guard lock(machine_->mutex_);
  return machine_->engine_.now_ns();
}

std::vector<WorkRecord> SimDriver::work() const {
  const std::lock_guard lock(machine_->mutex_);
  return machine_->engine_.finished();
}

void SimDriver::reuse_addresses() {
  const std::lock_guard lock(machine_->mutex_);
  machine_->memory_.reuse_addresses();
}

void SimDriver::fail_call(std::uint64_t n, CuResult code, std::string_view function) {
  const std::lock_guard lock(machine_->mutex_);
  machine_->injection_ = {n, code, std::string(function)};
  machine_->failed_call_.clear();
}

std::string SimDriver::failed_call() const {
  const std::lock_guard lock(machine_->mutex_);
  return machine_->failed_call_;
}

std::vector<std::string_view> SimDriver::calls() const {
  const std::lock_guard lock(machine_->mutex_);
  return machine_->calls_;
}

std::size_t SimDriver::live_objects() const {
  const std::lock_guard lock(machine_->mutex_);
  const Machine& m = *machine_;
  // A child graph goes with its node, a captured one with its capture.
  std::size_t graphs = 0;
  for (const auto& [handle, graph] : m.graphs_) graphs += graph->owner ? 0 : 1;
  return graphs + m.memory_.live_objects() + m.modules_.size() + m.streams_.size() +
         m.events_.size() + m.execs_.size();
}

std::vector<std::string> SimDriver::violations() const {
  const std::lock_guard lock(machine_->mutex_);
  return machine_->violations_;
}

void SimDriver::allow_shared_memory(cuda::CuFunction function, int bytes) {
  const std::lock_guard lock(machine_->mutex_);
  if (Function* const found = machine_->functions_.find(function)) {
    found->kernel_shared_bytes = bytes;
  }
}

cuda::CuGraphNode SimDriver::add_opaque_node(cuda::CuGraph graph, cuda::CuNodeType type) {
  const std::lock_guard lock(machine_->mutex_);
  CuGraphNode node = nullptr;
  machine_->add_node(graph, std::vector<Dependency>{}, OpaqueOp{type}, &node);
  return node;
}

}  // namespace anabranch::sim
