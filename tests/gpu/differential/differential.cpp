// SPDX-License-Identifier: Apache-2.0
#include "differential.h"

#include <thread>

namespace anabranch::cuda {

const Driver* Differential::driver = nullptr;
const void* Differential::device_code_image = nullptr;

const char* const kKernels = R"(.version 7.0
.target sm_80
.address_size 64

.visible .entry add_one(.param .u64 p_in, .param .u64 p_out, .param .u32 p_count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [p_in];
  ld.param.u64 %d2, [p_out];
  ld.param.u32 %r1, [p_count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %d3, %r5, 4;
  add.s64 %d4, %d1, %d3;
  add.s64 %d5, %d2, %d3;
  ld.global.u32 %r6, [%d4];
  add.u32 %r7, %r6, 1;
  st.global.u32 [%d5], %r7;
DONE:
  ret;
}

.visible .entry store(.param .u32 p_count, .param .align 8 .b8 p_target[16])
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .b64 %d<4>;
  ld.param.u32 %r1, [p_count];
  ld.param.u64 %d1, [p_target];
  ld.param.u32 %r2, [p_target+8];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r6, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %d2, %r6, 4;
  add.s64 %d3, %d1, %d2;
  st.global.u32 [%d3], %r2;
DONE:
  ret;
}

.visible .entry foreach_add_one(.param .u64 p_table, .param .u32 p_count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %d<9>;
  ld.param.u64 %d1, [p_table];
  ld.param.u32 %r1, [p_count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %d2, %r5, 8;
  mul.wide.u32 %d3, %r1, 8;
  add.s64 %d4, %d1, %d2;
  add.s64 %d5, %d4, %d3;
  ld.global.u64 %d6, [%d4];
  ld.global.u64 %d7, [%d5];
  ld.global.u32 %r6, [%d6];
  add.u32 %r7, %r6, 1;
  st.global.u32 [%d7], %r7;
DONE:
  ret;
}

.visible .entry keep_numbers(.param .u64 p_out, .param .u64 p_wide, .param .u32 p_narrow,
                     .param .u16 p_half)
{
  .reg .b16 %h<2>;
  .reg .b32 %r<3>;
  .reg .b64 %d<3>;
  ld.param.u64 %d1, [p_out];
  ld.param.u64 %d2, [p_wide];
  ld.param.u32 %r1, [p_narrow];
  ld.param.u16 %h1, [p_half];
  cvt.u32.u16 %r2, %h1;
  st.global.u64 [%d1], %d2;
  st.global.u32 [%d1+8], %r1;
  st.global.u32 [%d1+12], %r2;
  ret;
}

.visible .entry nothing()
{
  ret;
}
)";

Differential::Differential() {
  EXPECT_CU(d.cuDevicePrimaryCtxRetain(&context, 0));
  EXPECT_CU(d.cuCtxSetCurrent(context));
  EXPECT_CU(d.cuModuleLoadData(&module, kKernels));
  EXPECT_CU(d.cuModuleGetFunction(&add_one, module, "add_one"));
  EXPECT_CU(d.cuModuleGetFunction(&store, module, "store"));
  EXPECT_CU(d.cuModuleGetFunction(&keep_numbers, module, "keep_numbers"));
  EXPECT_CU(d.cuModuleGetFunction(&nothing, module, "nothing"));
  EXPECT_CU(d.cuModuleGetFunction(&foreach_add_one, module, "foreach_add_one"));
}

Differential::~Differential() {
  CuCaptureMode mode = CuCaptureMode::kGlobal;  // what a thread begins with
  EXPECT_CU(d.cuThreadExchangeStreamCaptureMode(&mode));
  for (const CuStream on : streams_) {
    CuGraph graph = nullptr;
    d.cuStreamEndCapture(on, &graph);
    if (graph) d.cuGraphDestroy(graph);
  }
  EXPECT_CU(d.cuCtxSynchronize()) << "the case lost the context";
  for (const CuGraphExec exec : execs_) EXPECT_CU(d.cuGraphExecDestroy(exec));
  for (const CuGraph graph : graphs_) EXPECT_CU(d.cuGraphDestroy(graph));
  for (const CuEvent made : events_) EXPECT_CU(d.cuEventDestroy(made));
  for (const CuStream made : streams_) EXPECT_CU(d.cuStreamDestroy(made));
  for (const CuDevicePtr address : memory_) EXPECT_CU(d.cuMemFree(address));
  for (void* const address : host_memory_) EXPECT_CU(d.cuMemFreeHost(address));
  EXPECT_CU(d.cuModuleUnload(module));
  EXPECT_CU(d.cuDevicePrimaryCtxRelease(0));
}

CuStream Differential::stream(unsigned flags, int priority) {
  CuStream& made = streams_.emplace_back();
  EXPECT_CU(d.cuStreamCreateWithPriority(&made, flags, priority));
  return made;
}

CuEvent Differential::event() {
  CuEvent& made = events_.emplace_back();
  EXPECT_CU(d.cuEventCreate(&made, kEventDefault));
  return made;
}

CuDevicePtr Differential::allocate(std::size_t bytes) {
  CuDevicePtr& made = memory_.emplace_back();
  EXPECT_CU(d.cuMemAlloc(&made, bytes));
  return made;
}

void* Differential::allocate_host(std::size_t bytes) {
  void*& made = host_memory_.emplace_back();
  EXPECT_CU(d.cuMemHostAlloc(&made, bytes, kHostAllocPortable));
  return made;
}

void Differential::put(CuDevicePtr address, std::vector<std::uint32_t> words) {
  EXPECT_CU(d.cuMemcpyHtoD(address, words.data(), words.size() * 4));
  EXPECT_CU(d.cuStreamSynchronize(nullptr));
}

void Differential::fill(CuDevicePtr address, std::uint8_t byte, std::size_t bytes) {
  EXPECT_CU(d.cuMemsetD8(address, byte, bytes));
  EXPECT_CU(d.cuStreamSynchronize(nullptr));
}

std::vector<std::uint32_t> Differential::get(CuDevicePtr address, std::size_t count) {
  std::vector<std::uint32_t> words(count);
  EXPECT_CU(d.cuMemcpyDtoH(words.data(), address, count * 4));
  return words;
}

CuResult Differential::launch(CuFunction function, CuStream on, std::vector<void*> params) {
  void** const given = params.empty() ? nullptr : params.data();
  return d.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, given, nullptr);
}

CuResult Differential::launch_add_one(CuStream on, CuDevicePtr in, CuDevicePtr out) {
  std::uint32_t count = 1;
  return launch(add_one, on, {&in, &out, &count});
}

void Differential::begin(CuStream on, CuCaptureMode mode) {
  ASSERT_CU(d.cuStreamBeginCapture(on, mode));
}

CuGraph Differential::end(CuStream on) {
  CuGraph graph = nullptr;
  EXPECT_CU(d.cuStreamEndCapture(on, &graph));
  if (graph) graphs_.push_back(graph);
  return graph;
}

CuGraph Differential::capture(const std::function<void(CuStream)>& work) {
  const CuStream on = stream();
  begin(on);
  work(on);
  return end(on);
}

std::vector<CuGraphNode> Differential::nodes_of(CuGraph graph) {
  std::size_t count = 0;
  EXPECT_CU(d.cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CuGraphNode> nodes(count);
  EXPECT_CU(d.cuGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

CuGraphExec Differential::instantiate(CuGraph graph) {
  CuInstantiateParams params{};
  CuGraphExec exec = nullptr;
  EXPECT_CU(d.cuGraphInstantiateWithParams(&exec, graph, &params));
  if (exec) execs_.push_back(exec);
  return exec;
}

void Differential::run(CuGraphExec exec) {
  const CuStream on = stream();
  ASSERT_CU(d.cuGraphLaunch(exec, on));
  ASSERT_CU(d.cuStreamSynchronize(on));
}

CuResult Differential::in_thread(const std::function<CuResult()>& call) {
  CuResult result{};
  std::thread([&] {
    d.cuCtxSetCurrent(context);
    result = call();
  }).join();
  return result;
}

}  // namespace anabranch::cuda
