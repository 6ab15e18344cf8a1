// SPDX-License-Identifier: Apache-2.0
// Whether the address in a tensor map (CUtensorMap, which kernels take by value) is a word like any
// other. The format is secret, so it is tried: maps of many shapes, each at several addresses.
// Ownership: values.
// Threads:   any; needs no context.
// Failure:   none: a map that cannot be made or told is a reason.
// Edges:     where no kernel can use a tensor map, none is opaque.
#pragma once

#include <string>

#include "device/cuda/driver.h"

namespace anabranch::cuda {

// Why a word of a tensor map that equals an address must not be changed like one; empty where maps
// of one tensor at two addresses differ in nothing but words that are these addresses.
std::string why_tensor_maps_are_opaque(const Driver& driver, CuDevice device);

}  // namespace anabranch::cuda
