// SPDX-License-Identifier: Apache-2.0
// Copies, fills and tables as kernels: what a recording runs in place of the driver's nodes, since
// those keep the kind of memory that they were captured with. Built where nvcc is; see
// device_code.h.
//
// Each row is moved in the widest words that its addresses of this launch allow, and what is left
// behind the last word by bytes.
#include <cstdint>

#include "device/cuda/device_code.h"

namespace {

using anabranch::cuda::CopyParams;
using anabranch::cuda::FillParams;
using anabranch::cuda::kTableRange;
using anabranch::cuda::TableParams;

constexpr int kAhead = 4;  // words that one thread has loaded before it stores the first

// This thread's first place in a box, and how far it is from each to the next.
struct Place {
  std::uint64_t x = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint64_t y = std::uint64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  std::uint64_t z = blockIdx.z;
  std::uint64_t step_x = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t step_y = std::uint64_t{gridDim.y} * blockDim.y;
  std::uint64_t step_z = gridDim.z;
};

// Copies all whole words of a row and answers how many bytes those are.
template <typename Word>
__device__ std::uint64_t copy_words(const Place& place, std::uint64_t to_row,
                                    std::uint64_t from_row, std::uint64_t bytes) {
  Word* const __restrict__ to = reinterpret_cast<Word*>(to_row);
  const Word* const __restrict__ from = reinterpret_cast<const Word*>(from_row);
  const std::uint64_t count = bytes / sizeof(Word), step = place.step_x;
  std::uint64_t x = place.x;
  for (; x + (kAhead - 1) * step < count; x += kAhead * step) {
    Word loaded[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) loaded[i] = from[x + i * step];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) to[x + i * step] = loaded[i];
  }
  for (; x < count; x += step) to[x] = from[x];
  return count * sizeof(Word);
}

__device__ void copy_row(const Place& place, std::uint64_t to, std::uint64_t from,
                         std::uint64_t bytes) {
  const std::uint64_t both = to | from;
  std::uint64_t done = 0;
  if (both % 16 == 0) {
    done = copy_words<uint4>(place, to, from, bytes);
  } else if (both % 8 == 0) {
    done = copy_words<std::uint64_t>(place, to, from, bytes);
  } else if (both % 4 == 0) {
    done = copy_words<std::uint32_t>(place, to, from, bytes);
  } else if (both % 2 == 0) {
    done = copy_words<std::uint16_t>(place, to, from, bytes);
  }
  copy_words<unsigned char>(place, to + done, from + done, bytes - done);
}

// The same for a fill.
template <typename Word>
__device__ std::uint64_t fill_words(const Place& place, std::uint64_t row, std::uint64_t bytes,
                                    Word word) {
  Word* const to = reinterpret_cast<Word*>(row);
  const std::uint64_t count = bytes / sizeof(Word);
  for (std::uint64_t x = place.x; x < count; x += place.step_x) to[x] = word;
  return count * sizeof(Word);
}

// A row begins where the word does.
__device__ void fill_row(const Place& place, std::uint64_t row, std::uint64_t bytes,
                         std::uint32_t word) {
  std::uint64_t x = 0;
  if (row % 16 == 0) {
    x = fill_words(place, row, bytes, make_uint4(word, word, word, word));
  } else if (row % 4 == 0) {
    x = fill_words(place, row, bytes, word);
  }
  unsigned char* const to = reinterpret_cast<unsigned char*>(row);
  for (x += place.x; x < bytes; x += place.step_x) {
    to[x] = static_cast<unsigned char>(word >> (x % sizeof word * 8));
  }
}

// A table may begin at any byte.
__device__ void store_word(std::uint64_t to, std::uint64_t word) {
  if (to % sizeof word == 0) {
    *reinterpret_cast<std::uint64_t*>(to) = word;
    return;
  }
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(to);
  for (unsigned i = 0; i < sizeof word; ++i) bytes[i] = static_cast<unsigned char>(word >> 8 * i);
}

}  // namespace

extern "C" __global__ void anabranch_copy(const CopyParams copy) {
  const Place place;
  for (std::uint64_t z = place.z; z < copy.depth; z += place.step_z) {
    for (std::uint64_t y = place.y; y < copy.height; y += place.step_y) {
      copy_row(place, copy.to + z * copy.to_slice + y * copy.to_pitch,
               copy.from + z * copy.from_slice + y * copy.from_pitch, copy.width_bytes);
    }
  }
}

extern "C" __global__ void anabranch_fill(const FillParams fill) {
  const Place place;
  for (std::uint64_t y = place.y; y < fill.height; y += place.step_y) {
    fill_row(place, fill.to + y * fill.pitch, fill.width_bytes, fill.word);
  }
}

// What a block copies it alone writes over, once all its threads have copied.
extern "C" __global__ void anabranch_table(const __grid_constant__ TableParams table) {
  Place place;
  place.x = threadIdx.x;
  place.step_x = blockDim.x;
  for (std::uint64_t begin = std::uint64_t{blockIdx.x} * kTableRange; begin < table.bytes;
       begin += std::uint64_t{gridDim.x} * kTableRange) {
    const std::uint64_t left = table.bytes - begin;
    const std::uint64_t bytes = left < kTableRange ? left : kTableRange;
    copy_row(place, table.to + begin, table.from + begin, bytes);
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < table.count; i += blockDim.x) {
      const std::uint64_t at = table.places[i];
      if (at >= begin && at - begin < bytes) store_word(table.to + at, table.words[i]);
    }
  }
}
