// sigmoid_f32 of a chunk, faster. Device code only.
#pragma once

#include "worker/core/kernels/api/exponential.h"
#include "worker/core/kernels/cuda/fetched.cuh"

namespace coat::kernels::cuda {

// exp_f32(x) for |x| <= kModerate, its bits: no clamp is needed, and the result is a normal number, so that
// one addition to the exponent scales it. Of a NaN it gives anything.
constexpr float kModerate = 87.0f;
__device__ inline float moderate_exp(float x) {
  constexpr float kRounder = 0x1.8p23f;
  const float shifted = __fmaf_rn(x, 0x1.715476p0f, kRounder);
  const float n = shifted - kRounder;
  const float r = __fmaf_rn(n, -0x1.7f7d1cp-20f, __fmaf_rn(n, -0x1.62e4p-1f, x));
  float p = 1.0f / 5040.0f;
  p = __fmaf_rn(p, r, 1.0f / 720.0f);
  p = __fmaf_rn(p, r, 1.0f / 120.0f);
  p = __fmaf_rn(p, r, 1.0f / 24.0f);
  p = __fmaf_rn(p, r, 1.0f / 6.0f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  // The low bits of `shifted` are n; those of kRounder vanish in the shift.
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// 1 / d where that is a normal number: there the approximation and one step of Newton's method round
// correctly (what
// __frcp_rn does after its check of the range).
__device__ inline float moderate_reciprocal(float d) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(d));
  return __fmaf_rn(reciprocal, __fmaf_rn(-d, reciprocal, 1.0f), reciprocal);
}

// sigmoid_f32(x) for |x| <= kModerate, its bits.
__device__ inline float moderate_sigmoid(float x) { return moderate_reciprocal(1.0f + moderate_exp(-x)); }

// Rarely needed, so that one copy of it will do.
static __device__ __noinline__ float any_sigmoid(float x) { return sigmoid_f32(x); }

// Whether all |x| of a chunk are at most `limit`. NaN may count as small: who uses this multiplies by x as
// well.
template <typename M>
__device__ inline bool is_within(const Fetched<M>&, const Values& x, float limit) {
  return largest_magnitude(x) <= __float_as_uint(limit);
}
__device__ inline bool is_within(const Fetched<GroupedE4M3>& fetched, const Values&, float limit) {
  return decode_bf16(fetched.scale) <= limit / max_of(Format::kE4M3);
}

__device__ inline Values sigmoids(const Values& x, bool moderate) {
  Values sigmoid;
  if (moderate) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sigmoid.x[i] = moderate_sigmoid(x.x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sigmoid.x[i] = any_sigmoid(x.x[i]);
  }
  return sigmoid;
}

}  // namespace coat::kernels::cuda
