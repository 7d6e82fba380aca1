// Octave codes (octave_code.h) as a step looks them up that has no time to search: the row of a group by two
// comparisons, and what encoding and decoding in it need. Pure; CUDA kernels hold a copy and call level().
#pragma once

#include <array>
#include <cstdint>

#include "worker/core/quant/octave_rows.h"

namespace coat {

// A row n that groups take, from which smallest ratio on.
struct alignas(16) OctaveLevel {
  float reach;
  std::uint32_t n;
  float lowest;        // octave_floor()
  std::uint32_t base;  // of positions: `top` in the upper byte less 2 n times the bits of 1
};

// Decoding in row n: a code is octave_offset(step) above `base`; and the tail's stretch.
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

  // The level whose n is choose_octave_row()'s, or the first where that lies below it.
  constexpr unsigned level(float smallest_ratio) const {
    const unsigned first = first_level[std::bit_cast<std::uint32_t>(smallest_ratio) >> kBucketShift];
    unsigned level = first;
    for (unsigned i = 1; i <= kMostInBucket; ++i)
      level += levels[first + i].reach <= smallest_ratio ? 1u : 0u;
    return level;
  }

  static OctaveTables of(int top);  // 127 or 255
};

}  // namespace coat
