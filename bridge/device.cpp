// SPDX-License-Identifier: Apache-2.0
#include "anabranch/device.h"

#include "anabranch/experimental/thread_control.h"

#include "handles.h"

namespace ab = anabranch;

namespace {

std::vector<ab::CudaStream> streams_of(void* const* streams, uint32_t count) {
  std::vector<ab::CudaStream> all;
  all.reserve(count);
  for (uint32_t i = 0; i < count; ++i) all.push_back(ab::CudaStream(streams[i]));
  return all;
}

}  // namespace

AnabranchDevice* anabranch_device_host(const AnabranchHostOptions* given) {
  ab::host::DeviceOptions options;
  options.max_lanes = given->max_lanes;
  options.spin_ns = given->spin_ns;
  if (given->has_delays) options.delays_seed = given->delays_seed;
  ab::host::ThreadControl& threads = options.threads;
  threads.prepare = reinterpret_cast<decltype(threads.prepare)>(given->prepare_threads);
  threads.get_openmp = reinterpret_cast<decltype(threads.get_openmp)>(given->get_openmp);
  threads.set_openmp = reinterpret_cast<decltype(threads.set_openmp)>(given->set_openmp);
  threads.set_mkl_local = reinterpret_cast<decltype(threads.set_mkl_local)>(given->set_mkl_local);
  threads.team.run = reinterpret_cast<decltype(threads.team.run)>(given->team_run);
  threads.team.index = reinterpret_cast<decltype(threads.team.index)>(given->team_index);
  threads.team.size = reinterpret_cast<decltype(threads.team.size)>(given->team_size);
  return ab::bridge::guard([&] { return new AnabranchDevice{ab::host::make_device(options)}; });
}

void anabranch_device_free(AnabranchDevice* device) { delete device; }

AnabranchCudaFacts* anabranch_cuda_facts_new() {
  return ab::bridge::guard(
      [] { return ab::bridge::handle_of<AnabranchCudaFacts>(ab::describe_cuda()); });
}

void anabranch_cuda_facts_free(AnabranchCudaFacts* facts) { delete facts; }

int32_t anabranch_cuda_facts_driver_version(const AnabranchCudaFacts* facts) {
  return facts->facts.driver_version;
}

size_t anabranch_cuda_facts_feature_count(const AnabranchCudaFacts* facts) {
  return facts->facts.features.size();
}

const char* anabranch_cuda_facts_feature_name(const AnabranchCudaFacts* facts, size_t index) {
  return facts->facts.features[index].name.c_str();
}

const char* anabranch_cuda_facts_feature_why_off(const AnabranchCudaFacts* facts, size_t index) {
  return facts->facts.features[index].why_off.c_str();
}

size_t anabranch_cuda_facts_gpu_count(const AnabranchCudaFacts* facts) {
  return facts->facts.gpus.size();
}

const char* anabranch_cuda_facts_gpu(const AnabranchCudaFacts* facts, size_t ordinal) {
  return facts->facts.gpus[ordinal].c_str();
}

const char* anabranch_cuda_facts_why_no_gpus(const AnabranchCudaFacts* facts) {
  return facts->facts.why_no_gpus.c_str();
}

AnabranchStreamTies* anabranch_stream_ties_new(const AnabranchCaptureDevice* device) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchStreamTies>(ab::StreamTies::make(device->device));
  });
}

void anabranch_stream_ties_free(AnabranchStreamTies* ties) { delete ties; }

int32_t anabranch_stream_ties_join(const AnabranchStreamTies* ties, void* stream,
                                   void* const* others, uint32_t count) {
  return ab::bridge::guard([&] {
    const ab::Status joined = ties->ties.join(ab::CudaStream(stream), streams_of(others, count));
    return joined.ok() ? 0 : ab::bridge::fail(joined);
  });
}

int32_t anabranch_stream_ties_fork(const AnabranchStreamTies* ties, void* stream,
                                   void* const* others, uint32_t count) {
  return ab::bridge::guard([&] {
    const ab::Status forked = ties->ties.fork(ab::CudaStream(stream), streams_of(others, count));
    return forked.ok() ? 0 : ab::bridge::fail(forked);
  });
}
