// Moment codes as the fast optimizer step uses them: a warp holds groups of 128, four elements a thread,
// values in a range where no step of the arithmetic leaves the normal numbers. The bits are those of
// quant/moment_table.h and quant/octave_code.h; what differs is how they are found. Device code only.
//
// A code is a struct with
//   Table      in shared memory; load() fills it, with all threads of a block
//   decoder()  four words that its decode() needs for a group; the second is MomentTable::stretch()
//   decode()   MomentTable::unstretched() of codes
//   encoder()  the row of a group, whether this file's arithmetic suits it, and four words for encode()
//   encode()   with the halves of four random words (RoundingPlace)
// The words of all groups of a tile are made side by side by single lanes and read by all.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_parts.cuh"
#include "worker/core/quant/octave_tables.h"

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

// 1 / x, as IEEE rounds it, by the steps that the compiler takes among normal numbers: the hardware's
// approximation, corrected by its remainder.
__device__ inline float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_of(float x) {
  const float reciprocal = approximate_reciprocal(x);
  return __fmaf_rn(reciprocal, __fmaf_rn(-x, reciprocal, 1.0f), reciprocal);
}

// ratio_scale().inverse where nothing needs to be brought into range; NaN for 0, which makes ratios of 0.
__device__ inline float inverse_of(std::uint32_t largest) {
  return __uint_as_float(__float_as_uint(reciprocal_of(__uint_as_float(largest))) + 1);
}
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
// rounding_uniform() of a word's half: the middle of the bits' 2^-16th of (0, 1). 0x4300 above 16 bits is
// 128 + bits 2^-16.
template <int kHalf>
__device__ inline float uniform_of(std::uint32_t word) {
  const std::uint32_t bits = __byte_perm(word, 0x43000000u, kHalf == 0 ? 0x7610 : 0x7632);
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
  const float* boundaries;  // in device memory

  __device__ void load(const MomentStore& store) {
    if (threadIdx.x == 0) boundaries = store.boundaries;
    const auto* from = reinterpret_cast<const float4*>(store.values);
    auto* to = reinterpret_cast<float4*>(values);
    for (unsigned i = threadIdx.x; i < kMomentRows * kRow / 4; i += blockDim.x) to[i] = from[i];
  }
};

// Expanded E4M3.
template <bool kSigned, Rounding kRounding>
struct ExpandedE4M3 {
  using Table = ExpandedE4M3Table;
  static constexpr int kRow = Table::kRow, kLast = 126;
  static constexpr bool kOctave = false, kDecodesZero = true;

  static __device__ uint4 decoder(const Table&, int row) {
    return {static_cast<std::uint32_t>(row * kRow * 4), kOneBits, 0, 0};
  }
  static __device__ Quad decode(const Table& table, const uint4& words, std::uint32_t packed) {
    const std::uint32_t codes = kSigned ? packed & 0x7F7F7F7Fu : packed;
    Quad quad;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float value = at(table.values, scaled_byte<4>(codes, i, words.x));
      quad.x[i] = kSigned ? with_sign_of_byte(value, packed, i) : value;
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
    return exact_row(store, amax, smallest);
  }
  static __device__ __noinline__ int exact_row(const MomentStore& store, float amax, float smallest) {
    return choose_row(store.limits, store.first_row, amax, smallest);
  }
  static __device__ Encoding encoder(const Table&, const MomentStore& store, const Range& range) {
    const int row = range.largest == 0 ? kLastRow : row_of(store, range);
    return {row,
            row > store.first_row,
            {__float_as_uint(inverse_of(range.largest)), __float_as_uint(static_cast<float>(row) * 0.0625f),
             static_cast<std::uint32_t>(row * kRow * 4), 0}};
  }

  // Where 448 ratio^k lies among the codes, in 2^-20 of one, from a logarithm right to 2^-17: the exponents
  // of E4M3 and of FP32's smallest agree.
  static constexpr float kLog2Of448 = 8.8073549f;
  static __device__ std::uint32_t position(float k, float ratio, float log2_of_448) {
    const float expanded = approximate_exp2(__fmaf_rn(k, approximate_log2(ratio), log2_of_448));
    return __float_as_uint(expanded * 0x1p-120f);
  }

  template <int kHalf>
  static __device__ std::uint32_t encode(const Table& table, const uint4& words, const Quad& quad,
                                         const PhiloxBlock& random) {
    float ratio[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      ratio[i] = ratio_within_one(fabsf(quad.x[i]), __uint_as_float(words.x));
    }
    std::uint32_t packed = 0;
    if constexpr (kRounding == Rounding::kStochastic) {
      packed = stochastic<kHalf>(table, words, ratio, random);
    } else {
      packed = nearest(table, words, ratio);
    }
    return kSigned ? packed | signs_of(quad) : packed;
  }

 private:
  // Of a table, at an offset in bytes.
  static __device__ float at(const float* table, std::uint32_t offset) {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(table) + offset);
  }

  template <int kHalf>
  static __device__ std::uint32_t stochastic(const Table& table, const uint4& words,
                                             const float (&ratio)[kQuad], const PhiloxBlock& random) {
    const float k = __uint_as_float(words.y);
    const auto value = [&](std::uint32_t offset) { return at(table.values, words.z + offset); };
    float low[kQuad], high[kQuad];
    std::uint32_t offset[kQuad], codes[kQuad];  // codes times 4
    bool wrong = false;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      offset[i] = position(k, ratio[i], kLog2Of448 - 0x1p-16f) >> 18 & 0x1FCu;  // rarely the code below
      low[i] = value(offset[i]);
      high[i] = value(offset[i] + 4);
      wrong |= ratio[i] > high[i];
    }
    if (wrong) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        offset[i] += high[i] <= ratio[i] && offset[i] < 4 * (kLast - 1) ? 4 : 0;
        low[i] = value(offset[i]);
        high[i] = value(offset[i] + 4);
      }
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const bool up = uniform_of<kHalf>(random.word[i]) * (high[i] - low[i]) > high[i] - ratio[i];
      codes[i] = offset[i] + (up ? 4u : 0u);
    }
    return codes[0] >> 2 | codes[1] << 6 | codes[2] << 14 | codes[3] << 22;
  }

  // nearest_code(): codes meet in the middle of positions. Near it, the boundary itself is asked.
  static __device__ std::uint32_t nearest(const Table& table, const uint4& words,
                                          const float (&ratio)[kQuad]) {
    constexpr std::uint32_t kHalfCode = 0x80000u,
                            kDoubt = 0x100u;  // 2^-16 of an octave of eight codes is 0x80
    std::uint32_t codes[kQuad], places[kQuad];
    bool doubt = false;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      places[i] = position(__uint_as_float(words.y), ratio[i], kLog2Of448);
      codes[i] = (places[i] + kHalfCode) >> 20;
      doubt |= is_doubtful(places[i], kHalfCode - kDoubt, 2 * kDoubt);
    }
    if (doubt) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        if (!is_doubtful(places[i], kHalfCode - kDoubt, 2 * kDoubt)) continue;
        const std::uint32_t below = places[i] >> 20;
        const float boundary = at(table.boundaries, words.z + 4 * below);
        codes[i] = below + (ratio[i] > boundary || (ratio[i] == boundary && below % 2 == 1) ? 1 : 0);
      }
    }
    return codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24;
  }
  static __device__ bool is_doubtful(std::uint32_t place, std::uint32_t from, std::uint32_t width) {
    return (place & 0xFFFFFu) - from < width;
  }
};

// Of one kind of octave codes; encoders and decoders of both kinds are made by the same instructions.
template <int kTop>
struct OctaveTable : OctaveTables {
  __device__ void load(const MomentStore& store) {
    static_assert(sizeof(OctaveTables) % sizeof(uint4) == 0);
    const auto* from = reinterpret_cast<const uint4*>(store.octaves);
    auto* to = reinterpret_cast<uint4*>(static_cast<OctaveTables*>(this));
    for (unsigned i = threadIdx.x; i < sizeof(OctaveTables) / sizeof(uint4); i += blockDim.x) to[i] = from[i];
  }
};

__device__ inline uint4 octave_decoder(const OctaveTables& tables, int row) {
  const uint4 entry = reinterpret_cast<const uint4*>(&tables.decoding)[min(row, kOctaveRows)];
  return {entry.x, entry.z, 0, entry.y};  // the last two: an addend of 64 bits
}

// In the first level the smallest may have no code.
__device__ inline Encoding octave_encoder(const OctaveTables& tables, const Range& range, bool has_sign) {
  const float inverse = inverse_of(range.largest);
  const float ratio = ratio_within_one(__uint_as_float(range.smallest), inverse);
  const unsigned level = tables.level(ratio);
  const uint4 entry = reinterpret_cast<const uint4*>(&tables.levels)[level];
  const float rest = has_sign ? 1.0f - __uint_as_float(entry.z) : 1.0f;
  return {static_cast<int>(range.largest == 0 ? kLastRow : entry.y),
          level > 0,
          {__float_as_uint(octave_slope(inverse, rest)), 2 * entry.y, entry.w, entry.z}};
}

// Octave codes, rounded stochastically.
template <bool kSigned>
struct Octave {
  using Table = OctaveTable<kSigned ? 127 : 255>;
  static constexpr bool kOctave = true;
  static constexpr bool kDecodesZero = kSigned;  // else the caller does

  static __device__ Quad decode(const Table&, const uint4& words, std::uint32_t packed) {
    const std::uint32_t codes = kSigned ? packed & 0x7F7F7F7Fu : packed;
    const float start = __uint_as_float(words.w);
    Quad quad;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const std::uint32_t top = __byte_perm(codes, 0, i << 12 | 0x0444);  // the code times 2^24
      const std::uint64_t base = std::uint64_t{words.w} << 32 | words.z;
      const float value =
          __uint_as_float(static_cast<std::uint32_t>((std::uint64_t{top} * words.x + base) >> 32));
      quad.x[i] = kSigned ? with_sign_of_byte(value - start, packed, i) : value;
    }
    return quad;
  }

  // Position and random number are added in one multiply-add: the base is a byte above the number's two.
  template <int kHalf>
  static __device__ std::uint32_t encode(const Table&, const uint4& words, const Quad& quad,
                                         const PhiloxBlock& random) {
    const float slope = __uint_as_float(words.x), lowest = __uint_as_float(words.w);
    std::uint32_t codes[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float y = kSigned ? __saturatef(__fmaf_rn(fabsf(quad.x[i]), slope, lowest))
                              : fmaxf(__saturatef(quad.x[i] * slope), lowest);
      const std::uint32_t start = __byte_perm(random.word[i], words.z, kHalf == 0 ? 0x7104 : 0x7324);
      codes[i] = __float_as_uint(y) * words.y + start;
      if constexpr (kSigned) codes[i] |= __float_as_uint(quad.x[i]) & 0x80000000u;
    }
    return packed_bytes<3>(codes);
  }
};

}  // namespace coat::kernels::cuda::adamw_fast
