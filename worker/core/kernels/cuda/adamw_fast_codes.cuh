// Moment codes as the fast optimizer step uses them: a warp holds groups of 128, four elements a thread,
// values in a range where no step of the arithmetic leaves the normal numbers. The bits are those of
// quant/moment_table.h and quant/octave_code.h; what differs is how they are found. Device code only.
//
// A code is a struct with
//   Table      in shared memory; load() fills it, with all threads of a block
//   decoder()  four words that its decode() needs for a group
//   encoder()  the row of a group, whether this file's arithmetic suits it, and four words for encode()
// The words of all groups of a tile are made side by side by single lanes and read by all.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_parts.cuh"

namespace coat::kernels::cuda::adamw_fast {

using namespace adamw_parts;

// Largest and smallest magnitude, as float bits; a group of zeros has largest 0.
struct Range {
  std::uint32_t largest, smallest;
};

struct Encoding {
  int row;
  bool fits;
  uint4 words;
};

__device__ inline float ratio_within_one(float magnitude, float inverse) {
  return __saturatef(magnitude * inverse);
}

__device__ inline float approximate_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// rounding_uniform() of 16 bits: the middle of the bits' 2^-16th of (0, 1). 0x4300 above 16 bits is 128 +
// bits 2^-16.
template <RoundingUse kUse>
__device__ inline float uniform_of(std::uint32_t word) {
  static_assert(kUse != RoundingUse::kWeight);
  const std::uint32_t bits = __byte_perm(word, 0x43000000u, kUse == RoundingUse::kMoment1 ? 0x7610 : 0x7632);
  return __uint_as_float(bits) - (128.0f - 0x1p-17f);
}

// Byte i of packed codes, times `scale` (a power of two up to 128), plus `base`.
template <int kScale>
__device__ inline std::uint32_t scaled_byte(std::uint32_t packed, int i, std::uint32_t base) {
  return __dp4a(packed, static_cast<std::uint32_t>(kScale) << (8 * i), base);
}

// Four codes of one byte each, from the given byte of four words.
template <int kByte>
__device__ inline std::uint32_t packed_bytes(const std::uint32_t (&words)[kQuad]) {
  constexpr std::uint32_t kPair = static_cast<std::uint32_t>(kByte | (4 + kByte) << 4);
  return __byte_perm(__byte_perm(words[0], words[1], kPair), __byte_perm(words[2], words[3], kPair), 0x5410);
}

__device__ inline std::uint32_t signs_of(const Quad& quad) {
  const std::uint32_t words[kQuad] = {__float_as_uint(quad.x[0]), __float_as_uint(quad.x[1]),
                                      __float_as_uint(quad.x[2]), __float_as_uint(quad.x[3])};
  return packed_bytes<3>(words) & 0x80808080u;
}

__device__ inline float with_sign_of_byte(float magnitude, std::uint32_t packed, int i) {
  return __uint_as_float(__float_as_uint(magnitude) | ((packed << (24 - 8 * i)) & 0x80000000u));
}

struct ExpandedE4M3Table {
  static constexpr int kRow = 128;
  float values[kMomentRows * kRow];

  __device__ void load(const MomentStore& store) {
    const auto* from = reinterpret_cast<const float4*>(store.values);
    auto* to = reinterpret_cast<float4*>(values);
    for (unsigned i = threadIdx.x; i < kMomentRows * kRow / 4; i += blockDim.x) to[i] = from[i];
  }
};

// Expanded E4M3, rounded stochastically.
template <RoundingUse kUse, bool kSigned>
struct ExpandedE4M3 {
  using Table = ExpandedE4M3Table;
  static constexpr int kRow = Table::kRow, kLast = 126;

  static __device__ uint4 decoder(const Table&, float amax, int row) {
    return {__float_as_uint(amax), static_cast<std::uint32_t>(row * kRow * 4), 0, 0};
  }
  static __device__ Quad decode(const Table& table, const uint4& words, std::uint32_t packed) {
    const std::uint32_t codes = kSigned ? packed & 0x7F7F7F7Fu : packed;
    Quad quad;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const auto* value = reinterpret_cast<const float*>(reinterpret_cast<const char*>(table.values) +
                                                         scaled_byte<4>(codes, i, words.y));
      const float magnitude = __uint_as_float(words.x) * *value;
      quad.x[i] = kSigned ? with_sign_of_byte(magnitude, packed, i) : magnitude;
    }
    return quad;
  }

  // choose_row(): from approximate logarithms where they leave no doubt.
  static __device__ int row_of(const MomentStore& store, const Range& range) {
    const float amax = __uint_as_float(range.largest), smallest = __uint_as_float(range.smallest);
    const float row =
        store.log_bound * approximate_reciprocal(approximate_log2(amax) - approximate_log2(smallest));
    const int low = static_cast<int>(row * (1.0f - 0x1p-16f)),
              high = static_cast<int>(row * (1.0f + 0x1p-16f));
    if (min(low, kMomentRows - 1) == min(high, kMomentRows - 1)) return min(low, kMomentRows - 1);
    return choose_row(store.limits, store.first_row, amax, smallest);
  }
  static __device__ Encoding encoder(const Table&, const MomentStore& store, const Range& range) {
    const int row = range.largest == 0 ? kLastRow : row_of(store, range);
    const float inverse = ratio_scale(__uint_as_float(range.largest)).inverse;
    return {row,
            row > store.first_row,
            {__float_as_uint(inverse), __float_as_uint(static_cast<float>(row) * 0.0625f),
             static_cast<std::uint32_t>(row * kRow * 4), 0}};
  }

  // The code of the ratio, times 4, or rarely the one below: 448 ratio^k from the hardware's logarithm and
  // exponential, which are right to 2^-17 of an octave, less 2^-16 of one.
  static __device__ std::uint32_t guess(float k, float ratio) {
    constexpr float kLog2Of448 = 8.8073549f - 0x1p-16f;
    const float expanded = approximate_exp2(__fmaf_rn(k, approximate_log2(ratio), kLog2Of448));
    return __float_as_uint(expanded * 0x1p-120f) >> 18 &
           0x1FCu;  // the exponents of E4M3 and of FP32's smallest agree
  }

  static __device__ std::uint32_t encode(const Table& table, const uint4& words, const Quad& quad,
                                         const Words& random) {
    const float inverse = __uint_as_float(words.x), k = __uint_as_float(words.y);
    const auto* row = reinterpret_cast<const char*>(table.values) + words.z;
    const auto value = [row](std::uint32_t offset) { return *reinterpret_cast<const float*>(row + offset); };
    float ratio[kQuad], low[kQuad], span[kQuad];
    std::uint32_t offset[kQuad], codes[kQuad];
    bool wrong = false;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      ratio[i] = ratio_within_one(fabsf(quad.x[i]), inverse);
      offset[i] = guess(k, ratio[i]);
      low[i] = value(offset[i]);
      span[i] = value(offset[i] + 4) - low[i];
      wrong |= ratio[i] - low[i] > span[i];
    }
    if (wrong) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        offset[i] += value(offset[i] + 4) <= ratio[i] && offset[i] < 4 * (kLast - 1) ? 4 : 0;
        low[i] = value(offset[i]);
        span[i] = value(offset[i] + 4) - low[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      codes[i] = offset[i] + (uniform_of<kUse>(random.word[i]) * span[i] < ratio[i] - low[i] ? 4u : 0u);
    }
    const std::uint32_t packed = codes[0] >> 2 | codes[1] << 6 | codes[2] << 14 | codes[3] << 22;
    return kSigned ? packed | signs_of(quad) : packed;
  }
};

template <int kTop>
struct OctaveTable {
  static constexpr bool kTail = kTop == 127;
  uint4 rows[kMomentRows];  // octave_step(), octave_floor(), the base of decoding, the tail's stretch
  float limits[kTail ? kOctaveRows + 1 : 1];  // choose_row()'s, rounded

  __device__ void load(const MomentStore& store) {
    for (unsigned i = threadIdx.x; i < kMomentRows; i += blockDim.x) {
      const int n = octave_row_used(kTop, static_cast<int>(i));
      const std::uint32_t step = octave_step(n), floor = octave_floor(kTop, n);
      rows[i] = {step, floor, kTail ? floor : kOneBits - octave_offset(step, kTop),
                 __float_as_uint(octave_tail(n).stretch)};
    }
    if constexpr (kTail) {
      for (unsigned i = threadIdx.x; i <= kOctaveRows; i += blockDim.x) {
        limits[i] = static_cast<float>(store.limits[i]);
      }
    }
  }
};

// Octave codes, in either rounding.
template <RoundingUse kUse, bool kSigned, bool kStochastic>
struct Octave {
  static constexpr int kTop = kSigned ? 127 : 255;
  using Table = OctaveTable<kTop>;

  static __device__ uint4 decoder(const Table& table, float amax, int row) {
    const uint4 entry = table.rows[row];
    // Without a tail 0 and the last are one 64-bit addend.
    return {__float_as_uint(amax), entry.x, kSigned ? entry.w : 0, entry.z};
  }
  static __device__ Quad decode(const Table&, const uint4& words, std::uint32_t packed) {
    const std::uint32_t codes = kSigned ? packed & 0x7F7F7F7Fu : packed;
    Quad quad;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const std::uint32_t top = __byte_perm(codes, 0, i << 12 | 0x0444);  // the code times 2^24
      float value = __uint_as_float(__umulhi(top, words.y) + words.w);
      if constexpr (kSigned)
        value = __saturatef((value - __uint_as_float(words.w)) * __uint_as_float(words.z));
      value *= __uint_as_float(words.x);
      const float magnitude = top == 0 ? 0.0f : value;
      quad.x[i] = kSigned ? with_sign_of_byte(magnitude, packed, i) : magnitude;
    }
    return quad;
  }

  static __device__ Encoding encoder(const Table& table, const MomentStore& store, const Range& range) {
    const float inverse = ratio_scale(__uint_as_float(range.largest)).inverse;
    const bool zeros = range.largest == 0;
    const int n = zeros ? kOctaveRows : row_of(table, store, range, inverse);
    const auto twice = static_cast<std::uint32_t>(2 * n);
    return {zeros ? kLastRow : n,
            n >= octave_first_row(kTop),
            {__float_as_uint(inverse), twice, (static_cast<std::uint32_t>(kTop) << 24) - kOneBits * twice,
             table.rows[n].y}};
  }

  static __device__ std::uint32_t encode(const Table&, const uint4& words, const Quad& quad,
                                         const Words& random) {
    const float lowest = __uint_as_float(words.w), rest = 1.0f - lowest;
    std::uint32_t codes[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float ratio = ratio_within_one(fabsf(quad.x[i]), __uint_as_float(words.x));
      const float used = kSigned ? __fmaf_rn(ratio, rest, lowest) : fmaxf(ratio, lowest);
      const std::uint32_t position = __float_as_uint(used) * words.y + words.z;
      if constexpr (kStochastic) {
        codes[i] = position + __byte_perm(random.word[i], 0, kUse == RoundingUse::kMoment1 ? 0x4104 : 0x4324);
      } else {
        codes[i] = position + 0x7FFFFFu + (position >> 24 & 1u);
      }
    }
    const std::uint32_t packed = packed_bytes<3>(codes);
    return kSigned ? packed | signs_of(quad) : packed;
  }

 private:
  static __device__ int row_of(const Table& table, const MomentStore& store, const Range& range,
                               float inverse) {
    if constexpr (kSigned) {
      // choose_row(): from an approximate quotient where it leaves no doubt.
      const float amax = __uint_as_float(range.largest), smallest = __uint_as_float(range.smallest);
      const float ratio = amax * approximate_reciprocal(smallest);
      int row = 0;
      bool doubt = false;
#pragma unroll
      for (int step = 64; step > 0; step >>= 1) {
        const float limit = table.limits[row + step];
        const bool holds = ratio * (1.0f + 0x1p-20f) <= limit;
        doubt = doubt || holds != (ratio * (1.0f - 0x1p-20f) <= limit);
        row += holds ? step : 0;
      }
      return doubt ? choose_row(store.limits, store.first_row, amax, smallest) : row;
    } else {
      // octave_row(): the quotient from an approximate reciprocal, one too many at most.
      constexpr std::uint32_t kRoom = static_cast<std::uint32_t>(kTop - 1) << 23;
      const std::uint32_t below =
          kOneBits - __float_as_uint(ratio_within_one(__uint_as_float(range.smallest), inverse));
      const float quotient = static_cast<float>(kRoom) * approximate_reciprocal(static_cast<float>(below));
      const auto n =
          static_cast<std::uint32_t>(min(static_cast<int>(quotient * (1.0f + 0x1p-20f)), kOctaveRows));
      return static_cast<int>(n * below > kRoom ? n - 1 : n);
    }
  }
};

}  // namespace coat::kernels::cuda::adamw_fast
