// SPDX-License-Identifier: Apache-2.0
// The simulated machine: all its state, and a member for every function of the driver's table.
// Ownership: a SimDriver owns the Machine, the Machine everything else. Its state is open to the
//            files of this room, which are one class cut by concern, and to nobody else.
// Threads:   enter() takes the lock; members are called under it.
// Failure:   codes of the driver. After a sticky one, every call but the harmless answers it.
// Edges:     a kernel or host function that runs holds the lock: its own calls of the table answer
//            kNotPermitted.
#pragma once

#include <deque>
#include <mutex>

#include "device/sim/objects.h"

namespace anabranch::sim {

// One function of the table, as an index of the list.
enum class CallId : int {
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) name,
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
};
std::string_view call_name(CallId call);

class Machine {
 public:
  explicit Machine(const SimOptions& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // The only one there is; the table's functions have no other way to it.
  static Machine* active;

  // Every call of the table comes through here: log, injected failures, sticky errors, captures
  // that forbid it, then the member.
  template <typename Member, typename... Args>
  CuResult enter(CallId call, Member member, Args... args) {
    const std::lock_guard lock(mutex_);
    const Refusal refusal = refuse(call);
    if (refusal.code != CuResult::kSuccess && !(refusal.late && frees(call))) return refusal.code;
    answers_late_ = refusal.late;
    const CuResult answer = (this->*member)(args...);
    return refusal.late ? refusal.code : answer;
  }

#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) CuResult name params;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION

  // faults.cpp
  struct Refusal {
    CuResult code = CuResult::kSuccess;
    bool late = false;  // an error of earlier work, so that what this call frees is freed
  };
  Refusal refuse(CallId call);
  static bool frees(CallId call);
  void lose_context(CuResult code, std::string why);
  void check_damage();

  // copies.cpp
  void run_copy(const CopyOp& op);
  // The same copy, bound to what lies at its operands now.
  CopyOp bound(CopyOp op) const;
  bool is_bound_to_what_is_gone(const CopyOp& op) const;
  void run_fill(const FillOp& op);
  CuResult check_copy(const CuMemcpy3D& copy) const;
  CuResult check_fill(const CuMemsetNodeParams& params) const;
  CuResult submit_copy(const CuMemcpy3D& copy, CuStream stream);
  CuResult submit_fill(const CuMemsetNodeParams& params, CuStream stream);

  // kernels.cpp
  CuResult make_kernel_op(const CuKernelNodeParams& params, KernelOp* op) const;
  const Function* find_function(const CuKernelNodeParams& params) const;
  CuResult pack(const Function& function, void** params, void** extra, KernelOp* op) const;
  void run_kernel(const KernelOp& op);
  void* kernel_memory(CuDevicePtr address, std::size_t bytes);

  // streams.cpp
  Device* current_device();
  CuResult find_stream(CuStream handle, Stream** stream);
  std::vector<After> work_before(Stream& stream);
  WorkRef enqueue(Stream& stream, Work work, std::vector<After> after = {});
  CuResult submit(CuStream stream, Op op);
  void run_op(const Op& op);
  std::uint64_t duration_of(const Op& op) const;
  CuResult finish(const std::vector<After>& work);
  CuResult query(const std::vector<After>& work);

  // capture.cpp
  CuResult check_unsafe();
  CuResult check_legacy(const Stream& stream);
  CuResult check_capturing(Stream& stream);
  static void invalidate(Capture& capture);
  bool is_used_by(const Capture& capture, bool (*which)(const Stream&)) const;
  void end_capture(Capture& capture);
  bool all_joined(const Capture& capture) const;
  CuResult capture_op(Stream& stream, Op op);
  CuResult wait_captured(Stream& stream, Event& event);
  CuResult use_event(Event& event);

  // graph.cpp
  CuResult add_node(CuGraph graph, const std::vector<Dependency>& after, Op op, CuGraphNode* node);
  CuResult add_node(CuGraph graph, const CuGraphNode* after, std::size_t count, Op op,
                    CuGraphNode* node);
  CuResult check_edge(const Graph& graph, const Edge& edge) const;
  std::vector<CuGraphNode> in_order(const Graph& graph) const;
  Graph& copy_graph(const Graph& original);
  void destroy_graph(Graph& graph);
  template <typename T>
  CuResult find_op(CuGraphNode handle, Node** node, T** op);
  void show_params(Node& node, KernelOp& op, CuKernelNodeParams* params);

  // exec.cpp
  bool is_device_launchable(const Graph& graph, CuGraphNode* culprit) const;
  CuResult check_instantiable(const Graph& graph, CuGraphNode* culprit) const;
  void flatten(const Graph& graph, Exec& exec, std::optional<std::size_t> inside);
  CuResult upload(CuGraphExec handle, Stream& stream);
  std::vector<After> launch_nodes(const std::shared_ptr<Exec>& exec, const Stream& stream,
                                  const WorkRef& root);
  WorkRef launch_node(const std::shared_ptr<Exec>& exec, const ExecNode& node, std::size_t index,
                      const Stream& stream, std::vector<After> after);
  ExecNode* find_exec_node(CuGraphExec exec, CuGraphNode node);
  std::array<MemoryKind, 2> kinds_of(const CuMemcpy3D& copy) const;
  CuResult set_exec_op(CuGraphExec exec, ExecNode& node, Op op);
  bool has_shape_of(const Graph& now, const Graph& then) const;
  void set_child(Exec& exec, const Graph& now, const Graph& then);
  CuResult check_same_operands(const CuMemcpy3D& before, const CuMemcpy3D& after) const;
  CuResult check_same_fill(const CuMemsetNodeParams& before, const CuMemsetNodeParams& after) const;
  DeviceCopy* find_device_copy(CuDeviceNode node, bool* undone);

  const SimOptions options_;
  mutable std::recursive_mutex mutex_;
  cuda::Driver table_;

  // faults.cpp
  struct Injection {
    std::uint64_t countdown = 0;
    CuResult code = CuResult::kSuccess;
    std::string function;
  } injection_;
  std::string failed_call_;
  std::vector<std::string_view> calls_;
  std::vector<std::string> violations_;
  CuResult sticky_ = CuResult::kSuccess;
  bool answers_late_ = false;
  bool running_ = false;         // a kernel or host function
  bool kernel_running_ = false;  // which may update nodes
  bool unchecked_ = false;       // kernels ran since the last check_damage()

  bool initialized_ = false;
  AddressSpace memory_;
  Engine engine_;
  std::vector<Device> devices_;
  std::map<std::thread::id, Device*> current_;
  std::map<std::thread::id, CuCaptureMode> thread_modes_;
  std::deque<Kernel> kernels_;
  std::map<std::string, const Kernel*, std::less<>> kernel_of_name_;  // the latest
  Registry<CuModule, Module> modules_;
  Registry<CuFunction, Function> functions_;
  std::map<CuKernel, CuFunction> library_kernels_;
  Registry<CuStream, Stream> streams_;
  std::map<int, Stream> legacy_;                                          // one a device
  std::map<std::pair<std::thread::id, int>, Stream> per_thread_streams_;  // one a thread and device
  Registry<CuEvent, Event> events_;
  Registry<CuGraph, Graph> graphs_;
  Registry<CuGraphNode, Node> nodes_;
  Registry<CuGraphExec, Exec> execs_;
  std::vector<std::shared_ptr<Capture>> captures_;  // those that have not ended
  std::uint64_t next_capture_ = 1;
  struct DeviceNode {
    CuGraphNode node = nullptr;
    std::weak_ptr<Exec> exec;
  };
  std::map<CuDeviceNode, DeviceNode> device_nodes_;
};

template <typename T>
CuResult Machine::find_op(CuGraphNode handle, Node** node, T** op) {
  *node = nodes_.find(handle);
  *op = *node ? std::get_if<T>(&(*node)->op) : nullptr;
  return *op ? CuResult::kSuccess : CuResult::kInvalidValue;
}

}  // namespace anabranch::sim
