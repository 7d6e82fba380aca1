// Pieces of the optimizer step that its kernels share. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/matrix_io.cuh"
#include "worker/core/quant/moment_table.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::cuda::adamw_parts {

inline constexpr int kQuad = 4;                       // elements of a thread
inline constexpr std::int64_t kTile = kWarp * kQuad;  // elements of a warp; groups never straddle two
inline constexpr std::uint32_t kNoMagnitude = 0x7FFFFFFFu;

struct Quad {
  float x[kQuad];
};

// How one moment is stored, as device code needs it.
struct MomentStore {
  MomentCode code = MomentCode::kFp32;
  int group = static_cast<int>(kTile);
  bool stochastic = false;
  RoundingUse use = RoundingUse::kMoment1;
  int last = 0, first_row = 0;  // code and row
  const float* values = nullptr;
  const float* boundaries = nullptr;
  const double* limits = nullptr;
};

struct GroupData {
  void* stored;
  float* amax;
  std::uint8_t* row;
};

// AdamWTensor as the kernel reads it.
struct TensorEntry {
  float* value;
  const float* gradient;
  std::int64_t elements;
  GroupData m, v;
  std::int64_t first_index;
  std::int64_t first_tile;
  std::uint32_t id;
  float weight_decay;
  bool aligned;  // whole quads can be read at once
};

struct StepScalars {
  const float* gradient_scale;
  float beta1, beta2, eps, learning_rate, bias_correction1, root_bias_correction2;
  std::uint64_t seed, step;
  bool easy_root = false;           // root_bias_correction2's fraction is not all ones
  float reciprocal_root = 0;        // 1 / root_bias_correction2, rounded
  PhiloxKey keys[kPhiloxRounds]{};  // of the rounds
};

// The elements of one thread: `count` of them from `first` on.
struct Span {
  std::int64_t first;
  int count;
  bool whole;  // 4, aligned
};

__device__ inline Quad load_fp32(const float* data, const Span& span) {
  if (span.whole) {
    const float4 v = *reinterpret_cast<const float4*>(data + span.first);
    return {{v.x, v.y, v.z, v.w}};
  }
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.x[i] = i < span.count ? data[span.first + i] : 0.0f;
  return quad;
}

__device__ inline void store_fp32(float* data, const Span& span, const Quad& quad) {
  if (span.whole) {
    *reinterpret_cast<float4*>(data + span.first) = make_float4(quad.x[0], quad.x[1], quad.x[2], quad.x[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) data[span.first + i] = quad.x[i];
  }
}

__device__ inline std::uint32_t load_codes(const std::uint8_t* codes, const Span& span) {
  if (span.whole) return *reinterpret_cast<const std::uint32_t*>(codes + span.first);
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) packed |= static_cast<std::uint32_t>(codes[span.first + i]) << (8 * i);
  }
  return packed;
}

__device__ inline void store_codes(std::uint8_t* codes, const Span& span, std::uint32_t packed) {
  if (span.whole) {
    *reinterpret_cast<std::uint32_t*>(codes + span.first) = packed;
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) codes[span.first + i] = static_cast<std::uint8_t>(packed >> (8 * i));
  }
}

__device__ inline float expanded_value(const float* values, float amax, std::uint32_t code) {
  return __uint_as_float(__float_as_uint(amax * values[code & 0x7Fu]) | (code & 0x80u) << 24);
}

__device__ inline Quad expanded_values(const float* values, float amax, std::uint32_t packed,
                                       const Span& span) {
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    quad.x[i] = i < span.count ? expanded_value(values, amax, (packed >> (8 * i)) & 0xFFu) : 0.0f;
  }
  return quad;
}

__device__ inline Quad load_moment(const MomentStore& store, const GroupData& data, const Span& span) {
  if (store.code == MomentCode::kFp32) return load_fp32(static_cast<const float*>(data.stored), span);
  if (span.count == 0) return Quad{};
  const std::int64_t group = span.first / store.group;
  const float* values = store.values + 128 * data.row[group];
  return expanded_values(values, data.amax[group],
                         load_codes(static_cast<const std::uint8_t*>(data.stored), span), span);
}

// The random words of the elements of the span, by their index in the whole parameter.
struct Words {
  std::uint32_t word[kQuad];
};
__device__ inline Words random_words(const PhiloxStream& random, std::int64_t index) {
  Words words;
  if (index % kQuad == 0) {
    const PhiloxBlock block =
        philox4x32(random.counter(static_cast<std::uint64_t>(index / kQuad)), random.key());
#pragma unroll
    for (int i = 0; i < kQuad; ++i) words.word[i] = block.word[i];
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) words.word[i] = random.word(static_cast<std::uint64_t>(index + i));
  }
  return words;
}

// Zero has no sign; another value has code `smallest` at least.
__device__ inline std::uint32_t with_sign(std::int32_t magnitude, float value, std::int32_t smallest) {
  const std::uint32_t sign = (__float_as_uint(value) >> 24) & 0x80u;
  return value != 0.0f ? static_cast<std::uint32_t>(max(magnitude, smallest)) | sign : 0u;
}

__device__ inline std::uint32_t encode_quad(const MomentStore& store, int row, float amax, const Quad& quad,
                                            const Words& words) {
  const float* values = store.values + 128 * row;
  const std::int32_t smallest = smallest_code(values, amax);
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float ratio = fabsf(quad.x[i]) / amax;
    const std::int32_t magnitude =
        store.stochastic
            ? stochastic_code<7>(values, store.last, ratio, rounding_uniform(words.word[i], store.use))
            : nearest_code<7>(store.boundaries + 128 * row, ratio);
    packed |= with_sign(magnitude, quad.x[i], smallest) << (8 * i);
  }
  return packed;
}

struct GroupRange {
  std::uint32_t largest = 0;
  std::uint32_t smallest = kNoMagnitude;  // of those that are not zero
};

// Of the group that this thread's elements lie in. Every lane of the warp takes part.
__device__ inline GroupRange group_range(const Quad& quad, int group) {
  GroupRange range;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const std::uint32_t bits = magnitude_bits(quad.x[i]);
    range.largest = max(range.largest, bits);
    range.smallest = min(range.smallest, bits == 0 ? kNoMagnitude : bits);
  }
  for (int offset = group / kQuad / 2; offset > 0; offset /= 2) {
    range.largest = max(range.largest, __shfl_xor_sync(kWholeWarp, range.largest, offset));
    range.smallest = min(range.smallest, __shfl_xor_sync(kWholeWarp, range.smallest, offset));
  }
  return range;
}

// root / root_bias_correction2, rounded as IEEE division does: by Markstein's theorem, as in
// adamw_whole_tile.cuh. A root of an FP32 is 0 or at least 2^-75, and the divisor lies in (2^-20, 1].
__device__ inline float corrected_root(const StepScalars& s, float root) {
  if (!s.easy_root) return root / s.root_bias_correction2;
  const float quotient = root * s.reciprocal_root;
  return __fmaf_rn(__fmaf_rn(-quotient, s.root_bias_correction2, root), s.reciprocal_root, quotient);
}

// New moments and value of the span, in FP32, from the old ones (COAT.md 1.2).
__device__ inline void update(const StepScalars& s, float gradient_scale, float weight_decay,
                              const Quad& gradient, Quad& value, Quad& m, Quad& v) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float g = gradient.x[i] * gradient_scale;
    m.x[i] = s.beta1 * m.x[i] + (1.0f - s.beta1) * g;
    v.x[i] = s.beta2 * v.x[i] + (1.0f - s.beta2) * (g * g);
    const float denominator = (corrected_root(s, sqrtf(v.x[i])) + s.eps) * s.bias_correction1;
    value.x[i] -= s.learning_rate * (m.x[i] / denominator + weight_decay * value.x[i]);
  }
}

}  // namespace coat::kernels::cuda::adamw_parts
