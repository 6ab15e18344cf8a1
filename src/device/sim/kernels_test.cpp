// SPDX-License-Identifier: Apache-2.0
#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;

struct Pair {
  CuDevicePtr out;
  std::uint32_t value, padding;
};

// store(count, {out, value}): a struct by value after a narrower parameter.
Kernel store_kernel() {
  return {.name = "store", .params = layout_of({4, 16}), .run = [](const KernelCall& call) {
            const auto pair = call.param<Pair>(8);
            const auto count = call.param<std::uint32_t>(0);
            auto* out = call.memory<std::uint32_t>(pair.out, count);
            for (std::uint32_t i = 0; out && i < count; ++i) out[i] = pair.value;
          }};
}

class SimKernels : public SimTest {};

TEST_F(SimKernels, AreFoundByNameInAnImage) {
  sim->add_kernel(store_kernel());
  const std::string ptx =
      ".version 7.0\n.target sm_80\n.visible .entry store(.param .u32 n)\n{ ret; }\n";
  CuModule module = nullptr;
  CuFunction function = nullptr;
  ASSERT_CU(d->cuModuleLoadData(&module, ptx.c_str()));
  ASSERT_CU(d->cuModuleGetFunction(&function, module, "store"));
  EXPECT_EQ(d->cuModuleGetFunction(&function, module, "add_one"), CuResult::kNotFound);
  const char* name = nullptr;
  ASSERT_CU(d->cuFuncGetName(&name, function));
  EXPECT_STREQ(name, "store");
  EXPECT_EQ(d->cuModuleLoadData(&module, "no image"), CuResult::kInvalidImage);
  EXPECT_EQ(d->cuModuleLoadData(&module, SimDriver::make_image({"unknown"}).c_str()),
            CuResult::kNoBinaryForGpu);
}

TEST_F(SimKernels, ShowTheirLayoutUntilTheListEnds) {
  const CuFunction function = load(store_kernel());
  std::vector<std::size_t> seen;
  std::size_t offset = 0, bytes = 0;
  for (std::size_t i = 0; d->cuFuncGetParamInfo(function, i, &offset, &bytes) == CuResult{}; ++i) {
    seen.insert(seen.end(), {offset, bytes});
  }
  EXPECT_THAT(seen, ElementsAre(0, 4, 8, 16));
  EXPECT_EQ(d->cuFuncGetParamInfo(function, 2, &offset, &bytes), CuResult::kInvalidValue);
}

TEST_F(SimKernels, TakeParametersOneByOneOrAsOneBlock) {
  const CuFunction function = load(store_kernel());
  const CuDevicePtr a = allocate(8), b = allocate(8);
  std::uint32_t count = 2;
  Pair pair{a, 7, 0};
  ASSERT_CU(launch(function, nullptr, {&count, &pair}));
  EXPECT_EQ(get(a + 4), 7u);
  struct {
    std::uint32_t count, padding;
    Pair pair;
  } block{2, 0, {b, 9, 0}};
  std::size_t bytes = sizeof block;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &bytes, kParamsEnd};
  ASSERT_CU(d->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(get(b + 4), 9u);
  void* params[] = {&count, &pair};
  EXPECT_EQ(d->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, extra),
            CuResult::kInvalidValue);
  for (const std::size_t wrong : {sizeof block + 1, sizeof block + 8}) {
    bytes = wrong;
    EXPECT_EQ(d->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
              CuResult::kInvalidValue);
  }
}

TEST_F(SimKernels, ReadTheirParametersWhenTheyAreLaunched) {
  const CuFunction function = load(store_kernel());
  const CuDevicePtr a = allocate(8);
  std::uint32_t count = 1;
  Pair pair{a, 1, 0};
  ASSERT_CU(launch(function, nullptr, {&count, &pair}));
  pair.value = 2;
  EXPECT_EQ(get(a), 1u);
}

TEST_F(SimKernels, SeeGridBlockAndCluster) {
  KernelCall seen;
  const CuFunction function =
      load({.name = "shape", .params = {}, .run = [&](const KernelCall& call) { seen = call; }});
  CuLaunchAttribute cluster{};
  cluster.id = CuLaunchAttributeId::kClusterDimension;
  cluster.value.cluster_dim = {2, 1, 1};
  CuLaunchConfig config{4, 3, 2, 64, 2, 1, 512, nullptr, &cluster, 1};
  ASSERT_CU(d->cuLaunchKernelEx(&config, function, nullptr, nullptr));
  ASSERT_CU(d->cuCtxSynchronize());
  EXPECT_EQ(seen.grid.x * seen.grid.y * seen.grid.z, 24u);
  EXPECT_EQ(seen.block.x, 64u);
  EXPECT_EQ(seen.cluster.x, 2u);
  EXPECT_EQ(seen.shared_bytes, 512u);
  config.grid_x = 5;
  EXPECT_EQ(d->cuLaunchKernelEx(&config, function, nullptr, nullptr),
            CuResult::kInvalidClusterSize);
}

TEST_F(SimKernels, RefuseShapesThatNoDeviceTakes) {
  const CuFunction function = noting("k");
  EXPECT_EQ(d->cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CuResult::kInvalidValue);
  EXPECT_EQ(d->cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr, nullptr),
            CuResult::kInvalidValue);
}

TEST_F(SimKernels, HaveLargeClustersAndMuchSharedMemoryOnlyWhereTheFunctionAllowsIt) {
  const CuFunction function = noting("k");
  CuLaunchAttribute cluster{};
  cluster.id = CuLaunchAttributeId::kClusterDimension;
  cluster.value.cluster_dim = {16, 1, 1};
  CuLaunchConfig config{16, 1, 1, 1, 1, 1, 0, nullptr, &cluster, 1};
  EXPECT_EQ(d->cuLaunchKernelEx(&config, function, nullptr, nullptr),
            CuResult::kInvalidClusterSize);
  ASSERT_CU(
      d->cuFuncSetAttribute(function, CuFunctionAttribute::kNonPortableClusterSizeAllowed, 1));
  EXPECT_CU(d->cuLaunchKernelEx(&config, function, nullptr, nullptr));
  config.shared_bytes = 100'000;
  EXPECT_EQ(d->cuLaunchKernelEx(&config, function, nullptr, nullptr), CuResult::kInvalidValue);
  ASSERT_CU(
      d->cuFuncSetAttribute(function, CuFunctionAttribute::kMaxDynamicSharedSizeBytes, 100'000));
  EXPECT_CU(d->cuLaunchKernelEx(&config, function, nullptr, nullptr));
}

TEST_F(SimKernels, MayBeShownByANodeAsAKernelWithoutAFunction) {
  start({.nodes_show_kernels = true});
  const CuFunction function = load("add_one");
  const CuDevicePtr a = allocate(4), b = allocate(4);
  put(a, 1);
  CuDevicePtr in = a, out = b;
  std::uint32_t count = 1;
  const CuStream on = stream();
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(launch(function, on, {&in, &out, &count}));
  const CuGraph graph = end_capture(on);
  CuKernelNodeParams shown{};
  ASSERT_CU(d->cuGraphKernelNodeGetParams(nodes_of(graph).front(), &shown));
  EXPECT_EQ(shown.func, nullptr);
  CuFunction found = nullptr;
  ASSERT_CU(d->cuKernelGetFunction(&found, shown.kernel));
  EXPECT_EQ(found, function);
  const CuGraphExec exec = instantiate(graph);
  ASSERT_CU(d->cuGraphExecKernelNodeSetParams(exec, nodes_of(graph).front(), &shown));
  ASSERT_CU(d->cuGraphLaunch(exec, on));
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimKernels, AreGoneWithTheirModule) {
  CuModule module = nullptr;
  CuFunction function = nullptr;
  ASSERT_CU(d->cuModuleLoadData(&module, SimDriver::make_image({"add_one"}).c_str()));
  ASSERT_CU(d->cuModuleGetFunction(&function, module, "add_one"));
  ASSERT_CU(d->cuModuleUnload(module));
  EXPECT_EQ(launch(function, nullptr), CuResult::kInvalidHandle);
}

TEST_F(SimKernels, TakeTensorMapsByValueWhoseAddressCanBeReplaced) {
  CuTensorMap map;
  const std::uint64_t dims[] = {64, 8}, strides[] = {128};
  const std::uint32_t box[] = {64, 8}, steps[] = {1, 1};
  const CuDevicePtr a = allocate(1024), b = allocate(1024);
  const auto encode = [&](CuDevicePtr address, CuTensorMap* to) {
    return d->cuTensorMapEncodeTiled(to, CuTensorType::kBfloat16, 2,
                                     reinterpret_cast<void*>(address), dims, strides, box, steps,
                                     CuTensorInterleave::kNone, CuTensorSwizzle::k128B,
                                     CuTensorL2Promotion::kNone, CuTensorOobFill::kNone);
  };
  CuTensorMap other;
  ASSERT_CU(encode(a, &map));
  ASSERT_CU(encode(b, &other));
  EXPECT_NE(std::memcmp(&map, &other, sizeof map), 0);
  ASSERT_CU(d->cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(b)));
  EXPECT_EQ(std::memcmp(&map, &other, sizeof map), 0);
  EXPECT_EQ(encode(a + 8, &map), CuResult::kInvalidValue);
}

}  // namespace
}  // namespace anabranch::sim
