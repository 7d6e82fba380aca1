// The optimizer step on a whole tile of 128 elements by one warp, 4 a thread, where a tile is one group of
// both moments and both are rounded stochastically. The bits are those of quant/moment_table.h; what differs
// is how a code is found: from the hardware's approximate logarithm and exponential, then corrected against
// the exact table, which lies in shared memory. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_parts.cuh"

namespace coat::kernels::cuda::whole_tile {

using namespace adamw_parts;

constexpr int kThreads = 1024;
constexpr int kRows = 256, kRow = 128;
constexpr int kSharedBytes = 2 * kRows * 8 + kRows * kRow * 4;

inline bool fits(const MomentStore& store) {
  return store.code == MomentCode::kE4M3 && store.group == kTile && store.stochastic;
}

struct Tables {
  const double* limits[2];  // of m and v
  const float* values;      // [kRows][kRow]
  int first_row;
};

// Every thread of the block takes part.
__device__ inline Tables load_tables(char* shared, const MomentStore& m, const MomentStore& v) {
  auto* ratios = reinterpret_cast<double*>(shared);
  auto* values = reinterpret_cast<float4*>(shared + 2 * kRows * sizeof(double));
  const auto* source = reinterpret_cast<const float4*>(m.values);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 2 * kRows; i += kThreads) {
    ratios[i] = i < kRows ? m.limits[i] : v.limits[i - kRows];
  }
  for (int i = thread; i < kRows * kRow / 4; i += kThreads) values[i] = source[i];
  __syncthreads();
  return {{ratios, ratios + kRows}, reinterpret_cast<const float*>(values), m.first_row};
}

struct Group {
  std::uint32_t largest, smallest;  // magnitudes; kNoMagnitude: all are 0
};

__device__ inline Group group_of(const Quad& quad) {
  std::uint32_t largest = 0, smallest = kNoMagnitude;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const std::uint32_t bits = magnitude_bits(quad.x[i]);
    largest = max(largest, bits);
    smallest = min(smallest, bits == 0 ? kNoMagnitude : bits);
  }
  return {__reduce_max_sync(kWholeWarp, largest), __reduce_min_sync(kWholeWarp, smallest)};
}

// choose_row() of both moments at once: lanes below 16 look at m, the others at v, 16 limits at a time.
struct Exponents {
  int m, v;
};
__device__ inline Exponents exponents_of(const Tables& tables, const Group& m, const Group& v) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, half = lane / 16, place = lane % 16;
  const double amax = stored_amax(__uint_as_float(half == 0 ? m.largest : v.largest), false);
  const double amin = __uint_as_float(half == 0 ? m.smallest : v.smallest);
  const double ratio = amax / amin;
  const double* limits = tables.limits[half];
  const std::uint32_t coarse = __ballot_sync(kWholeWarp, ratio <= limits[16 * place]);
  const int base = 16 * max(__popc(coarse >> (16 * half) & 0xFFFFu) - 1, 0);
  const std::uint32_t fine = __ballot_sync(kWholeWarp, ratio <= limits[base + place]);
  const int mine = max(base + __popc(fine >> (16 * half) & 0xFFFFu) - 1, tables.first_row);
  return {__shfl_sync(kWholeWarp, mine, 0), __shfl_sync(kWholeWarp, mine, 16)};
}

// x / amax, rounded as IEEE division does. Markstein's theorem: with the correctly rounded reciprocal, one
// step that corrects a quotient by its exact remainder rounds correctly, unless the divisor's fraction is all
// ones or something leaves the range of normal numbers.
struct Divisor {
  float amax, reciprocal;
  bool easy;
};
__device__ inline Divisor divisor_of(const Group& group) {
  constexpr std::uint32_t kLow = (127u - 60u) << 23, kHigh = (127u + 60u) << 23;
  const float amax = stored_amax(__uint_as_float(group.largest), false);
  const bool inside = group.smallest >= kLow && group.largest <= kHigh;
  return {amax, __frcp_rn(amax), inside && (group.largest & 0x7FFFFFu) != 0x7FFFFFu};
}
template <bool kEasy>
__device__ inline float divide(float x, const Divisor& d) {
  if (!kEasy) return x / d.amax;
  const float quotient = x * d.reciprocal;
  return __fmaf_rn(__fmaf_rn(-quotient, d.amax, x), d.reciprocal, quotient);
}

// stochastic_code() of `ratio` in the row of `values` for exponent k.
__device__ inline std::int32_t code_of(const float* values, float k, float ratio, float uniform) {
  constexpr std::int32_t kLast = 125;  // of codes that have one above
  constexpr float kLog2Of448 = 8.8073549f;
  // 448 ratio^k within some 2^-18 of itself, and the E4M3 code below it.
  float logarithm, expanded;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(ratio));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(expanded) : "f"(__fmaf_rn(k, logarithm, kLog2Of448)));
  const auto normal = static_cast<std::int32_t>(__float_as_uint(expanded) >> 20) - 960;
  const std::int32_t guess = expanded < 0x1p-6f ? static_cast<std::int32_t>(expanded * 512.0f) : normal;
  std::int32_t code = min(max(guess, 0), kLast);
  float low = values[code], high = values[code + 1];
  if (low > ratio || (high <= ratio && code < kLast)) {  // about one in 10^5
    while (code < kLast && values[code + 1] <= ratio) ++code;
    while (values[code] > ratio) --code;
    low = values[code];
    high = values[code + 1];
  }
  return code + (uniform * (high - low) < ratio - low ? 1 : 0);
}

template <bool kEasy>
__device__ inline std::uint32_t codes_of(const float* values, float k, const Divisor& divisor,
                                         const Quad& quad, const PhiloxBlock& random, RoundingUse use) {
  const std::int32_t smallest = smallest_code(values, divisor.amax);
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float ratio = divide<kEasy>(fabsf(quad.x[i]), divisor);
    const std::int32_t code = code_of(values, k, ratio, rounding_uniform(random.word[i], use));
    packed |= with_sign(code, quad.x[i], smallest) << (8 * i);
  }
  return packed;
}

// New codes of one moment.
__device__ inline void store_group(const GroupData& data, std::int64_t group, const Tables& tables, int row,
                                   const Group& range, const Quad& quad, const PhiloxBlock& random,
                                   RoundingUse use) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t packed = 0;
  const bool zeros = range.largest == 0;
  if (!zeros) {
    const Divisor divisor = divisor_of(range);
    const float* values = tables.values + kRow * row;
    const float k = static_cast<float>(row) * 0.0625f;
    packed = divisor.easy ? codes_of<true>(values, k, divisor, quad, random, use)
                          : codes_of<false>(values, k, divisor, quad, random, use);
  }
  static_cast<std::uint32_t*>(data.stored)[group * kWarp + lane] = packed;
  if (lane != 0) return;
  data.amax[group] = stored_amax(__uint_as_float(range.largest), false);
  data.row[group] = static_cast<std::uint8_t>(zeros ? kLastRow : row);
}

// philox4x32() with the launch's keys, which are the same for all of it.
__device__ inline PhiloxBlock random_block(PhiloxBlock counter, const StepScalars& scalars) {
  auto& [c0, c1, c2, c3] = counter.word;
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) philox_round(c0, c1, c2, c3, scalars.keys[round]);
  return counter;
}

// Tile number `group` of the tensor. Aligned.
__device__ inline void step(const TensorEntry& t, std::int64_t group, const Tables& tables,
                            const StepScalars& scalars, float gradient_scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t quad = group * kWarp + lane;
  const float4 value4 = reinterpret_cast<const float4*>(t.value)[quad];
  const float4 gradient4 = reinterpret_cast<const float4*>(t.gradient)[quad];
  const std::uint32_t m_codes = static_cast<const std::uint32_t*>(t.m.stored)[quad];
  const std::uint32_t v_codes = static_cast<const std::uint32_t*>(t.v.stored)[quad];
  const Span whole{0, kQuad, true};
  Quad m = expanded_values(tables.values + kRow * t.m.row[group], t.m.amax[group], m_codes, whole);
  Quad v = expanded_values(tables.values + kRow * t.v.row[group], t.v.amax[group], v_codes, whole);
  Quad value{{value4.x, value4.y, value4.z, value4.w}};
  update(scalars, gradient_scale, t.weight_decay, {{gradient4.x, gradient4.y, gradient4.z, gradient4.w}},
         value, m, v);
  reinterpret_cast<float4*>(t.value)[quad] = make_float4(value.x[0], value.x[1], value.x[2], value.x[3]);
  const Group m_group = group_of(m), v_group = group_of(v);
  const Exponents exponents = exponents_of(tables, m_group, v_group);
  const PhiloxStream stream{scalars.seed, scalars.step, t.id};
  const PhiloxBlock random =
      random_block(stream.counter(static_cast<std::uint64_t>(t.first_index / kQuad + quad)), scalars);
  store_group(t.m, group, tables, exponents.m, m_group, m, random, RoundingUse::kMoment1);
  store_group(t.v, group, tables, exponents.v, v_group, v, random, RoundingUse::kMoment2);
}

}  // namespace coat::kernels::cuda::whole_tile
