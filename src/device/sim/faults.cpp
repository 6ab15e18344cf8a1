// SPDX-License-Identifier: Apache-2.0
// Which calls are refused before they do anything: injected failures, lost contexts, captures.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

bool is_sticky(CuResult code) {
  return code == CuResult::kIllegalAddress || code == CuResult::kLaunchFailed ||
         code == CuResult::kMisalignedAddress || code == CuResult::kAssert ||
         code == CuResult::kIllegalInstruction || code == CuResult::kEccUncorrectable;
}

template <std::size_t count>
bool is_one_of(CallId call, const std::array<CallId, count>& calls) {
  return std::find(calls.begin(), calls.end(), call) != calls.end();
}

// They need no context, and so answer after one is lost, too.
constexpr std::array kHarmless = {CallId::cuInit,
                                  CallId::cuDriverGetVersion,
                                  CallId::cuDeviceGetCount,
                                  CallId::cuDeviceGet,
                                  CallId::cuDeviceGetName,
                                  CallId::cuDeviceGetAttribute,
                                  CallId::cuDeviceTotalMem,
                                  CallId::cuCtxGetCurrent,
                                  CallId::cuCtxSetCurrent,
                                  CallId::cuCtxGetDevice,
                                  CallId::cuThreadExchangeStreamCaptureMode};

constexpr std::array kFreeing = {CallId::cuDevicePrimaryCtxRelease,
                                 CallId::cuMemFree,
                                 CallId::cuMemFreeHost,
                                 CallId::cuMemAddressFree,
                                 CallId::cuMemRelease,
                                 CallId::cuMemUnmap,
                                 CallId::cuStreamDestroy,
                                 CallId::cuEventDestroy,
                                 CallId::cuStreamEndCapture,
                                 CallId::cuModuleUnload,
                                 CallId::cuGraphDestroy,
                                 CallId::cuGraphExecDestroy};

// They are not queued, so no capture would see them: see cuThreadExchangeStreamCaptureMode.
// Copies and fills that wait, and cuModuleLoadData, are not queued either, but a device was seen to
// allow them.
constexpr std::array kUnsafe = {CallId::cuMemAlloc,     CallId::cuMemFree,
                                CallId::cuMemHostAlloc, CallId::cuMemFreeHost,
                                CallId::cuStreamQuery,  CallId::cuStreamSynchronize,
                                CallId::cuEventQuery,   CallId::cuEventSynchronize,
                                CallId::cuModuleUnload, CallId::cuGraphInstantiateWithParams};

}  // namespace

bool Machine::frees(CallId call) { return is_one_of(call, kFreeing); }

Machine::Refusal Machine::refuse(CallId call) {
  calls_.push_back(call_name(call));
  const bool meant = injection_.function.empty() || injection_.function == call_name(call);
  if (meant && injection_.countdown > 0 && --injection_.countdown == 0) {
    failed_call_ = call_name(call);
    if (is_sticky(injection_.code)) sticky_ = injection_.code;
    return {injection_.code, true};
  }
  if (running_) return {CuResult::kNotPermitted};
  if (is_one_of(call, kHarmless)) return {};
  if (!initialized_) return {CuResult::kNotInitialized};
  if (sticky_ != CuResult::kSuccess) return {sticky_, true};
  return {is_one_of(call, kUnsafe) ? check_unsafe() : CuResult::kSuccess};
}

void Machine::lose_context(CuResult code, std::string why) {
  violations_.push_back(std::move(why));
  if (sticky_ == CuResult::kSuccess) sticky_ = code;
}

void Machine::check_damage() {
  if (!unchecked_) return;
  unchecked_ = false;
  for (std::string damage; !(damage = memory_.find_damage()).empty();) {
    lose_context(CuResult::kIllegalAddress, std::move(damage));
  }
}

}  // namespace anabranch::sim
