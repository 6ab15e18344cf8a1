// SPDX-License-Identifier: Apache-2.0
// Checksums of memory; checksums.h says what they are. Built where nvcc is; see device_code.h.
//
// What limits them is arithmetic: a word costs two mixes, and one more for its place in its piece.
// That one is the same in every piece, so a block does one place of several pieces where a range
// has as many. A thread reads pairs of words, in the widest loads that the range's beginning
// allows.
#include <cstdint>

#include "device/cuda/device_code.h"

namespace {

using anabranch::cuda::Checksum;
using anabranch::cuda::ChecksumParams;
using anabranch::cuda::ChecksumRange;
using anabranch::cuda::kChecksumBlock;
using anabranch::cuda::kChecksumChunk;
using anabranch::cuda::kChecksumPiece;

constexpr int kBlocks = 4;  // on a multiprocessor at least: as many loads under way as memory needs
constexpr int kAhead = 4;   // pairs that one thread has loaded before it mixes the first
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kPair = 16;  // bytes

// What one block adds up: so many bytes in each of some pieces that follow one another.
struct Part {
  std::uint64_t begin;  // the address in the first of these pieces
  std::uint64_t bytes;
  std::uint64_t word;   // its number in the piece
  std::uint64_t piece;  // the number of the first piece
};

struct Pair {
  std::uint64_t words[2];
};

__device__ std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

__device__ std::uint64_t place_of(std::uint64_t word) { return mix(kGolden * (word + 1)); }

__device__ void add(Checksum& sums, std::uint64_t x) {
  const std::uint64_t once = mix(x);
  sums.first += once;
  sums.second += mix(once);
}

// A pair of words at a multiple of sizeof(Unit).
template <typename Unit>
__device__ Pair load_pair(std::uint64_t address) {
  const Unit* const from = reinterpret_cast<const Unit*>(address);
  constexpr int kUnits = 8 / sizeof(Unit);  // of a word
  Pair pair{};
#pragma unroll
  for (int i = 0; i < 2 * kUnits; ++i) {
    pair.words[i / kUnits] |= std::uint64_t{__ldg(from + i)} << i % kUnits * 8 * sizeof(Unit);
  }
  return pair;
}

template <>
__device__ Pair load_pair<ulonglong2>(std::uint64_t address) {
  const ulonglong2 both = __ldg(reinterpret_cast<const ulonglong2*>(address));
  return {{both.x, both.y}};
}

// Pairs from the thread's `x`-th on, so many steps of the block at a time, while all of them are in
// the part.
template <typename Unit, int kPieces, int kSteps>
__device__ void add_pairs(Checksum& sums, const Part& part, std::uint64_t& x) {
  const std::uint64_t pairs = part.bytes / kPair;
  for (; x + (kSteps - 1) * kChecksumBlock < pairs; x += kSteps * kChecksumBlock) {
    Pair loaded[kSteps][kPieces];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const std::uint64_t at = part.begin + (x + s * kChecksumBlock) * kPair;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) loaded[s][p] = load_pair<Unit>(at + p * kChecksumPiece);
    }
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const std::uint64_t word = part.word + 2 * (x + i / 2 * kChecksumBlock) + i % 2;
      const std::uint64_t place = place_of(word) + kGolden * part.piece;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        add(sums, loaded[i / 2][p].words[i % 2] + place + kGolden * p);
      }
    }
  }
}

// Behind the last pair: up to two words, of which the second may lack bytes.
__device__ void add_rest(Checksum& sums, const Part& part) {
  const std::uint64_t offset = part.bytes / kPair * kPair + threadIdx.x * 8;
  if (threadIdx.x >= 2 || offset >= part.bytes) return;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(part.begin + offset);
  std::uint64_t word = 0;
  for (unsigned i = 0; i < 8 && offset + i < part.bytes; ++i) {
    word |= std::uint64_t{__ldg(bytes + i)} << 8 * i;
  }
  add(sums, word + place_of(part.word + offset / 8) + kGolden * part.piece);
}

template <typename Unit>
__device__ void add_part(Checksum& sums, const Part& part) {
  std::uint64_t x = threadIdx.x;
  add_pairs<Unit, 1, kAhead>(sums, part, x);
  add_pairs<Unit, 1, 1>(sums, part, x);
  add_rest(sums, part);
}

// A chunk as it lies, which is in one piece.
__device__ void add_run(Checksum& sums, const ChecksumRange& range, std::uint64_t chunk) {
  const std::uint64_t offset = chunk * kChecksumChunk, left = range.bytes - offset;
  const Part part{range.begin + offset, left < kChecksumChunk ? left : kChecksumChunk,
                  offset % kChecksumPiece / 8, offset / kChecksumPiece};
  if (part.begin % 16 == 0) {
    add_part<ulonglong2>(sums, part);
  } else if (part.begin % 8 == 0) {
    add_part<std::uint64_t>(sums, part);
  } else if (part.begin % 4 == 0) {
    add_part<std::uint32_t>(sums, part);
  } else if (part.begin % 2 == 0) {
    add_part<std::uint16_t>(sums, part);
  } else {
    add_part<unsigned char>(sums, part);
  }
}

// As many bytes, but one place of several whole pieces, which have as many such columns as chunks.
template <int kPieces>
__device__ void add_column(Checksum& sums, const ChecksumRange& range, std::uint64_t piece,
                           std::uint64_t column) {
  constexpr std::uint64_t kBytes = kChecksumChunk / kPieces;
  static_assert(kBytes % (kAhead / kPieces * kChecksumBlock * kPair) == 0);
  const std::uint64_t offset = column * kBytes;
  std::uint64_t x = threadIdx.x;
  add_pairs<ulonglong2, kPieces, kAhead / kPieces>(
      sums, {range.begin + piece * kChecksumPiece + offset, kBytes, offset / 8, piece}, x);
}

// Four pieces at a time, then two, then what is left as it lies. So are ranges whose beginning is
// not aligned, which are rare.
__device__ void add_chunk(Checksum& sums, const ChecksumRange& range, std::uint64_t chunk) {
  constexpr std::uint64_t kChunks = kChecksumPiece / kChecksumChunk;  // of a piece
  const std::uint64_t piece = chunk / (4 * kChunks) * 4;
  const std::uint64_t column = chunk - piece * kChunks;
  const std::uint64_t left = range.bytes - piece * kChecksumPiece;
  const bool is_aligned = range.begin % 16 == 0;
  if (is_aligned && left >= 4 * kChecksumPiece) {
    add_column<4>(sums, range, piece, column);
  } else if (is_aligned && left >= 2 * kChecksumPiece && column < 2 * kChunks) {
    add_column<2>(sums, range, piece, column);
  } else {
    add_run(sums, range, chunk);
  }
}

// The last range that does not begin behind the chunk; one without bytes has none.
__device__ std::uint64_t range_of(const ChecksumRange* ranges, std::uint64_t count,
                                  std::uint64_t chunk) {
  std::uint64_t found = 0, end = count;
  while (end - found > 1) {
    const std::uint64_t middle = found + (end - found) / 2;
    (ranges[middle].first_chunk <= chunk ? found : end) = middle;
  }
  return found;
}

__device__ Checksum sum_of_warp(Checksum sums) {
  for (int distance = 16; distance > 0; distance /= 2) {
    sums.first += __shfl_down_sync(~0u, sums.first, distance);
    sums.second += __shfl_down_sync(~0u, sums.second, distance);
  }
  return sums;
}

__device__ void add_atomically(std::uint64_t& to, std::uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(value));
}

// All threads of the block. Sums are modulo 2^64, so that their order does not matter.
__device__ void add_up(Checksum sums, Checksum& to) {
  constexpr unsigned kWarps = kChecksumBlock / 32;
  __shared__ std::uint64_t of_warps[2][kWarps];
  sums = sum_of_warp(sums);
  if (threadIdx.x % 32 == 0) {
    of_warps[0][threadIdx.x / 32] = sums.first;
    of_warps[1][threadIdx.x / 32] = sums.second;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < kWarps; ++i) sum += of_warps[threadIdx.x][i];
  add_atomically(threadIdx.x == 0 ? to.first : to.second, sum);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kChecksumBlock, kBlocks)
    anabranch_checksum(const ChecksumParams params) {
  const auto* const ranges = reinterpret_cast<const ChecksumRange*>(params.ranges);
  const std::uint64_t number = range_of(ranges, params.count, blockIdx.x);
  const ChecksumRange range = ranges[number];
  Checksum sums;
  add_chunk(sums, range, blockIdx.x - range.first_chunk);
  add_up(sums, reinterpret_cast<Checksum*>(params.sums)[number]);
}
