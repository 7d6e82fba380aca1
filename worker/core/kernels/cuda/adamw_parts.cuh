// Pieces of the optimizer step that its kernels share: four elements of a thread, in any formats, sizes and
// alignment. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_entry.h"
#include "worker/core/kernels/cuda/matrix_io.cuh"
#include "worker/core/quant/moment_table.h"

namespace coat::kernels::cuda::adamw_parts {

inline constexpr int kQuad = 4;  // elements of a thread
inline constexpr int kWarpElements = kWarp * kQuad;
inline constexpr std::uint32_t kNoMagnitude = 0xFFFFFFFFu;  // smallest of a group of zeros

struct Quad {
  float x[kQuad];
};

// The elements of one thread: `count` of them from `first` on.
struct Span {
  std::int64_t first;
  int count;
  bool whole;  // 4, aligned
};

__device__ inline Quad load_fp32(const void* data, const Span& span) {
  const float* from = static_cast<const float*>(data) + span.first;
  if (span.whole) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    return {{v.x, v.y, v.z, v.w}};
  }
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.x[i] = i < span.count ? from[i] : 0.0f;
  return quad;
}

__device__ inline void store_fp32(void* data, const Span& span, const Quad& quad) {
  float* to = static_cast<float*>(data) + span.first;
  if (span.whole) {
    *reinterpret_cast<float4*>(to) = make_float4(quad.x[0], quad.x[1], quad.x[2], quad.x[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) to[i] = quad.x[i];
  }
}

__device__ inline Quad load_bf16(const void* data, const Span& span) {
  const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + span.first;
  Quad quad;
  if (span.whole) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(from);
    return {{__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xFFFF0000u),
             __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xFFFF0000u)}};
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.x[i] = i < span.count ? decode_bf16(from[i]) : 0.0f;
  return quad;
}

__device__ inline void store_halves(void* data, const Span& span, const std::uint32_t (&halves)[kQuad]) {
  std::uint16_t* to = static_cast<std::uint16_t*>(data) + span.first;
  if (span.whole) {
    *reinterpret_cast<uint2*>(to) = make_uint2(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16);
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) to[i] = static_cast<std::uint16_t>(halves[i]);
  }
}

// One byte an element, the first lowest.
__device__ inline std::uint32_t load_bytes(const void* data, const Span& span) {
  const std::uint8_t* from = static_cast<const std::uint8_t*>(data) + span.first;
  if (span.whole) return *reinterpret_cast<const std::uint32_t*>(from);
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) packed |= static_cast<std::uint32_t>(from[i]) << (8 * i);
  }
  return packed;
}

__device__ inline void store_bytes(void* data, const Span& span, std::uint32_t packed) {
  std::uint8_t* to = static_cast<std::uint8_t*>(data) + span.first;
  if (span.whole) {
    *reinterpret_cast<std::uint32_t*>(to) = packed;
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) to[i] = static_cast<std::uint8_t>(packed >> (8 * i));
  }
}

__device__ inline Quad load_value(WeightFormat weights, const TensorEntry& t, const Span& span) {
  if (weights == WeightFormat::kFp32) return load_fp32(t.value, span);
  Quad quad = load_bf16(t.value, span);
  if (weights == WeightFormat::kBf16Stochastic) return quad;
  const std::uint32_t residuals = load_bytes(t.residual, span);
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    quad.x[i] = join_weight(static_cast<std::uint16_t>(__float_as_uint(quad.x[i]) >> 16),
                            static_cast<std::int8_t>(residuals >> (8 * i)));
  }
  return quad;
}

// PhiloxStream::rounding_bits() of the span's elements, by their index in the whole parameter.
struct RoundingBits {
  std::uint32_t of[kQuad];
};
__device__ inline RoundingBits rounding_bits(const PhiloxStream& random, std::int64_t first) {
  const auto index = static_cast<std::uint64_t>(first);
  RoundingBits bits;
  if (index % kQuad == 0) {
    const RoundingPlace place = RoundingPlace::of(index);
    const PhiloxBlock block = philox4x32<kRoundingRounds>(random.counter(place.block), random.key());
#pragma unroll
    for (int i = 0; i < kQuad; ++i) bits.of[i] = rounding_half(block.word[i], place.half);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) bits.of[i] = random.rounding_bits(index + static_cast<unsigned>(i));
  }
  return bits;
}

__device__ inline void store_value(WeightFormat weights, const TensorEntry& t, const Span& span,
                                   const Quad& value, const RoundingBits& random) {
  if (weights == WeightFormat::kFp32) return store_fp32(t.value, span, value);
  std::uint32_t halves[kQuad], residuals = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (weights == WeightFormat::kBf16Stochastic) {
      halves[i] = round_bf16_stochastic(value.x[i], weight_rounding_bits(random.of[i]));
    } else {
      const SplitWeight split = split_weight(value.x[i]);
      halves[i] = split.bf16;
      residuals |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(split.residual)) << (8 * i);
    }
  }
  store_halves(t.value, span, halves);
  if (weights == WeightFormat::kBf16Residual) store_bytes(t.residual, span, residuals);
}

__device__ inline float stored_amax_at(const MomentStore& store, const GroupData& data, std::int64_t group) {
  if (!store.bf16_amax) return static_cast<const float*>(data.amax)[group];
  return decode_bf16(static_cast<const std::uint16_t*>(data.amax)[group]);
}

// Times amax; without kStretched as MomentTable::unstretched().
template <bool kStretched>
__device__ inline float decoded(const MomentStore& store, int row, float amax, std::uint32_t code) {
  const bool has_sign = is_signed(store.code);
  const auto magnitude = static_cast<int>(has_sign ? code & 0x7Fu : code);
  float value = 0.0f;
  if (is_octave(store.code)) {
    const int n = octave_row_used(store.last, row);
    value =
        kStretched ? octave_value(store.last, n, magnitude) : octave_unstretched(store.last, n, magnitude);
  } else {
    value = store.values[row * store.width + magnitude];
  }
  return __uint_as_float(__float_as_uint(amax * value) | (has_sign ? (code & 0x80u) << 24 : 0u));
}

__device__ inline Quad decoded_quad(const MomentStore& store, int row, float amax, std::uint32_t packed,
                                    const Span& span) {
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    quad.x[i] = i < span.count ? decoded<true>(store, row, amax, (packed >> (8 * i)) & 0xFFu) : 0.0f;
  }
  return quad;
}

// A moment in factors: MomentTable::unstretched(), amax of the group and stretch; the last two are 1 for FP32
// moments.
struct OldMoment {
  Quad relative;
  float amax = 1.0f, stretch = 1.0f;
};
__device__ inline OldMoment load_moment(const MomentStore& store, const GroupData& data, const Span& span) {
  if (store.code == MomentCode::kFp32) return {load_fp32(data.stored, span)};
  if (span.count == 0) return {};
  const std::int64_t group = span.first / store.group;
  const int row = store.expand ? data.row[group] : kPlainRow;
  OldMoment moment{{}, stored_amax_at(store, data, group)};
  if (is_octave(store.code))
    moment.stretch = octave_tail(store.last, octave_row_used(store.last, row)).stretch;
  const std::uint32_t packed = load_bytes(data.stored, span);
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    moment.relative.x[i] =
        i < span.count ? decoded<false>(store, row, 1.0f, (packed >> (8 * i)) & 0xFFu) : 0.0f;
  }
  return moment;
}

struct GroupRange {
  std::uint32_t largest = 0;
  std::uint32_t smallest = kNoMagnitude;  // of those that are not zero
};

__device__ inline GroupRange joined(const GroupRange& a, const GroupRange& b) {
  return {max(a.largest, b.largest), min(a.smallest, b.smallest)};
}

// Of the group that this thread's elements lie in, a power of two of them from 4 to 1024. Every lane of the
// warp takes part; with groups beyond a warp's elements every thread of the block, whose warps hold
// neighbouring elements and meet in `exchange`, one place a warp.
__device__ inline GroupRange group_range(const Quad& quad, int group, GroupRange* exchange) {
  GroupRange range;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const std::uint32_t bits = magnitude_bits(quad.x[i]);
    range = joined(range, {bits, bits == 0 ? kNoMagnitude : bits});
  }
  for (int offset = min(group, kWarpElements) / kQuad / 2; offset > 0; offset /= 2) {
    range = joined(range, {__shfl_xor_sync(kWholeWarp, range.largest, offset),
                           __shfl_xor_sync(kWholeWarp, range.smallest, offset)});
  }
  if (group <= kWarpElements) return range;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = group / kWarpElements;
  __syncthreads();  // an earlier exchange may still be read
  if (threadIdx.x % kWarp == 0) exchange[warp] = range;
  __syncthreads();
  for (int i = warp / warps * warps; i < warp / warps * warps + warps; ++i)
    range = joined(range, exchange[i]);
  return range;
}

// The magnitude code of a ratio.
template <int kBits>
__device__ inline std::int32_t table_code(const MomentStore& store, int row, float ratio,
                                          std::uint32_t random) {
  if (!store.stochastic) return nearest_code<kBits>(store.boundaries + row * store.width, ratio);
  return stochastic_code<kBits>(store.values + row * store.width, store.last, ratio,
                                rounding_uniform(random));
}
__device__ inline std::int32_t octave_code(const MomentStore& store, int row, float magnitude,
                                           const RatioScale& scale, std::uint32_t random) {
  const int n = octave_row_used(store.last, row);
  const OctaveTail tail = octave_tail(store.last, n);
  const float line = __fmaf_rn(magnitude * scale.up, octave_slope(scale.inverse, tail.rest), tail.start);
  const float y = line < 1.0f ? line : 1.0f;
  return store.stochastic ? stochastic_octave_code(store.last, n, y, random)
                          : nearest_octave_code(store.last, n, y);
}

__device__ inline std::uint32_t encoded_quad(const MomentStore& store, int row, float amax, const Quad& quad,
                                             const RoundingBits& random) {
  const bool has_sign = is_signed(store.code), octaves = is_octave(store.code);
  const RatioScale scale = ratio_scale(amax);
  const std::int32_t smallest = octaves         ? 1
                                : !store.expand ? 0
                                                : smallest_code(store.values + row * store.width, amax);
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float x = quad.x[i], ratio = ratio_of(fabsf(x), scale);
    const std::int32_t code = octaves    ? octave_code(store, row, fabsf(x), scale, random.of[i])
                              : has_sign ? table_code<7>(store, row, ratio, random.of[i])
                                         : table_code<8>(store, row, ratio, random.of[i]);
    const auto kept = static_cast<std::uint32_t>(x != 0.0f ? max(code, smallest) : 0);
    const std::uint32_t sign = has_sign && kept != 0 ? (__float_as_uint(x) >> 24) & 0x80u : 0u;
    packed |= (kept | sign) << (8 * i);
  }
  return packed;
}

__device__ inline int chosen_row(const MomentStore& store, float amax, float smallest) {
  if (!store.expand) return kPlainRow;
  if (is_octave(store.code)) return choose_octave_row(store.reach, ratio_of(smallest, ratio_scale(amax)));
  return choose_row(store.limits, store.first_row, amax, smallest);
}

// NaN: the step is skipped.
__device__ inline float gradient_factor(const StepScalars& s) {
  return s.rest1 * (s.gradient_scale != nullptr ? *s.gradient_scale : 1.0f);
}

// New moments and value of the span, in FP32, from the old ones (kernels/api/adamw_args.h).
struct NewMoments {
  Quad m, v;
};
__device__ inline NewMoments update(const StepScalars& s, float gradient_factor, float keep,
                                    const Quad& gradient, Quad& value, const OldMoment& m,
                                    const OldMoment& v) {
  const float m_scale = s.beta1 * m.amax * m.stretch, v_scale = s.beta2 * v.amax * v.stretch;
  NewMoments moments;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float h = gradient_factor * gradient.x[i];
    moments.m.x[i] = __fmaf_rn(m.relative.x[i], m_scale, h);
    moments.v.x[i] = __fmaf_rn(v.relative.x[i], v_scale, s.square * h * h);
    const float inverse = 1.0f / __fmaf_rn(sqrtf(moments.v.x[i]), s.inverse_step, s.eps);
    value.x[i] = __fmaf_rn(-moments.m.x[i], inverse, keep * value.x[i]);
  }
  return moments;
}

}  // namespace coat::kernels::cuda::adamw_parts
