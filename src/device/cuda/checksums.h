// SPDX-License-Identifier: Apache-2.0
// 128-bit checksums of many ranges of a GPU's memory, by one launch that reads each byte once.
//
// A range is cut into pieces of kChecksumPiece bytes from its beginning, a piece into words of
// eight bytes, lowest byte first; the last word is filled up with zeros. Modulo 2^64, word i of
// piece p becomes x = word + mix(golden * (i + 1)) + golden * p. The first sum is that of all
// mix(x), the second that of all mix(mix(x)). Here mix is the finalizer of SplitMix64 and golden
// its step: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
//
// A mix is a bijection: two ranges that differ in one word always have other sums. It is no
// protection against somebody who wants them to be the same.
// Ownership: keeps nothing; a table of 40 bytes a range lies on the device meanwhile.
// Threads:   any; waits for the stream. Other threads may capture, but in no global mode.
// Failure:   a Status where there is no device code, which says why, for more than 512 TiB, or with
//            the driver's call; nothing is left behind. Memory that is not there loses the context.
// Edges:     ranges begin at any byte, may overlap, and are read as the stream finds them; no bytes
//            have sums of zero, and nothing is launched for them alone. Neither the stream nor the
//            calling thread is in a capture.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/cuda_device.h"

namespace anabranch::cuda {

struct ByteRange {
  std::uint64_t begin = 0;  // an address
  std::uint64_t bytes = 0;
};

// One a range.
Result<std::vector<Checksum>> checksums(const CudaDevice& device, CuStream stream,
                                        std::span<const ByteRange> ranges);

}  // namespace anabranch::cuda
