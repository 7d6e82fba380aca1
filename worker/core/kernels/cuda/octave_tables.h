// What the fast optimizer step looks up for octave codes (quant/octave_code.h), in device memory.
#pragma once

#include <array>
#include <cstdint>

#include "worker/core/quant/octave_rows.h"

namespace coat::kernels::cuda {

// A row n that groups take, from which smallest ratio on.
struct alignas(16) OctaveLevel {
  float reach;
  std::uint32_t n;
  float lowest;        // octave_floor()
  std::uint32_t base;  // of positions: `top` in the upper byte less 2 n times the bits of 1
};

// Decoding in row n: a code is octave_offset(step) above `base`; of codes with signs the tail's stretch.
struct alignas(16) OctaveDecoding {
  std::uint32_t step, base;
  float stretch;
};

// Ratios whose float bits agree from bit 18 on start at one level, and end at most two above it.
struct alignas(16) OctaveTables {
  static constexpr int kBucketShift = 18, kBuckets = (kOneBits >> kBucketShift) + 1;
  static constexpr int kMostInBucket = 2;

  std::array<OctaveDecoding, kOctaveRows + 1> decoding;
  std::array<OctaveLevel, kOctaveRows + 1 + kMostInBucket> levels;  // rising; those after the last hold none
  std::array<std::uint8_t, kBuckets> first_level;                   // of a bucket

  static OctaveTables of(int top);
};

}  // namespace coat::kernels::cuda
