// SPDX-License-Identifier: Apache-2.0
#include "anabranch/device.h"

#include "handles.h"

namespace ab = anabranch;

AnabranchDevice* anabranch_device_host(const AnabranchHostOptions* given) {
  ab::HostOptions options;
  options.max_lanes = given->max_lanes;
  options.spin_ns = given->spin_ns;
  if (given->has_delays) options.delays_seed = given->delays_seed;
  ab::ThreadControl& threads = options.threads;
  threads.prepare = reinterpret_cast<decltype(threads.prepare)>(given->prepare_threads);
  threads.get_openmp = reinterpret_cast<decltype(threads.get_openmp)>(given->get_openmp);
  threads.set_openmp = reinterpret_cast<decltype(threads.set_openmp)>(given->set_openmp);
  threads.set_mkl_local = reinterpret_cast<decltype(threads.set_mkl_local)>(given->set_mkl_local);
  threads.team.run = reinterpret_cast<decltype(threads.team.run)>(given->team_run);
  threads.team.index = reinterpret_cast<decltype(threads.team.index)>(given->team_index);
  threads.team.size = reinterpret_cast<decltype(threads.team.size)>(given->team_size);
  return ab::bridge::guard([&] { return new AnabranchDevice{ab::Device::host(options)}; });
}

void anabranch_device_free(AnabranchDevice* device) { delete device; }
