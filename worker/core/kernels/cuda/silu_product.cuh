// silu(gate) * up of a chunk as BF16 codes, with the twin's bits. Device code only.
#pragma once

#include "worker/core/kernels/cuda/sigmoid.cuh"

namespace coat::kernels::cuda {

template <typename M>
struct GateAndUp {
  Fetched<M> gate, up;
};

template <typename M>
__device__ inline Values silu_product(const GateAndUp<M>& in) {
  Values v = decoded<M>(in.gate);
  const Values up = decoded<M>(in.up), sigmoid = sigmoids(v, is_within(in.gate, v, kModerate));
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * sigmoid.x[i] * up.x[i];
  return v;
}

template <typename M>
__device__ inline uint4 silu_product_words(const GateAndUp<M>& in) {
  return encode_words(silu_product(in));
}

// Rarely needed, so that one copy of it will do.
static __device__ __noinline__ uint4 exact_silu_product(uint2 gate, uint2 up, std::uint32_t scales) {
  const auto high = static_cast<std::uint16_t>(scales >> 16), low = static_cast<std::uint16_t>(scales);
  return encode_words(silu_product(GateAndUp<GroupedE4M3>{{gate, low}, {up, high}}));
}

// By the hardware's exponential and reciprocal, half of the instructions. Where the FP32 result is so near to
// the middle between two BF16 numbers that its error could change which one is nearer, the chunk is computed
// again.
//
// The error: scales are BF16, so gate * up is exact in FP32 (4 + 4 + 8 + 8 bits), and one rounding follows
// here and two in the twin. kSigmoidError bounds the relative difference of both sigmoids, in units of 2^-24,
// for |gate| <= kTame; it was measured over all codes and scales (tests/gpu/layers_test.cc does so with the
// results). A relative error of 2^-24 is at most one unit in the last place.
constexpr float kTame = 6.0f;
constexpr std::uint32_t kSigmoidError = 10, kDoubt = kSigmoidError + 4;

template <>
__device__ inline uint4 silu_product_words(const GateAndUp<GroupedE4M3>& in) {
  const float gate_scale = decode_bf16(in.gate.scale), up_scale = decode_bf16(in.up.scale);
  const Values gate = decode_bytes<Format::kE4M3>(in.gate.codes),
               up = decode_bytes<Format::kE4M3>(in.up.codes);
  const float rate = gate_scale * -0x1.715476p0f, scale = gate_scale * up_scale;
  Values v;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float exponential, sigmoid;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(gate.x[i] * rate));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + exponential));
    v.x[i] = gate.x[i] * up.x[i] * scale * sigmoid;
  }
  // The lower halves of all results, moved so that those in doubt are the least.
  constexpr std::uint32_t kMove = (0x8000u + kDoubt) * 0x10001u;
  std::uint32_t least = 0xFFFFFFFFu;
#pragma unroll
  for (int i = 0; i < kChunk; i += 2) {
    const std::uint32_t low = __byte_perm(__float_as_uint(v.x[i]), __float_as_uint(v.x[i + 1]), 0x5410);
    least = __viaddmin_u16x2(low, kMove, least);
  }
  const bool certain = min(least & 0xFFFFu, least >> 16) > 2 * kDoubt;
  // No FP32 number leaves the normal range, here or in the twin: codes are 2^-9 .. 2^9.
  constexpr float kSmall = 0x1p-80f, kLarge = 0x1p60f;
  const bool tame =
      gate_scale >= kSmall && gate_scale <= kTame / 448.0f && scale >= kSmall && scale <= kLarge;
  if (certain && tame) return encode_words(v);
  const std::uint32_t scales = in.gate.scale | static_cast<std::uint32_t>(in.up.scale) << 16;
  return exact_silu_product(in.gate.codes, in.up.codes, scales);
}

}  // namespace coat::kernels::cuda
