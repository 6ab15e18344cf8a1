// SPDX-License-Identifier: Apache-2.0
// Everything public, in the order in which data flows, but for what is experimental.
#pragma once

// clang-format off
#include "anabranch/version.h"
#include "anabranch/status.h"
#include "anabranch/program.h"
#include "anabranch/plan.h"
#include "anabranch/device.h"
#include "anabranch/record.h"
#include "anabranch/capture.h"
#include "anabranch/captured_recording.h"
#include "anabranch/timed_recording.h"
#include "anabranch/launch.h"
#include "anabranch/trace.h"
// clang-format on
