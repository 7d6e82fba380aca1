// A tile's elements in shared memory, and the arithmetic of the fast optimizer step that knows no moment
// codes. Device code only.
//
// Roots and reciprocals are those of IEEE within the range of normal numbers. A tile that might leave that
// range is left to the general code, before anything is written.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_fast.h"
#include "worker/core/kernels/cuda/adamw_fast_codes.cuh"
#include "worker/core/kernels/cuda/adamw_parts.cuh"

namespace coat::kernels::cuda::adamw_fast {

// A lane's elements: neighbours, so that it holds no part of a second group.
inline constexpr int kLaneElements = kTile / kWarp, kLaneQuads = kLaneElements / kQuad;

// A tile of an array in shared memory, kChunks chunks of 16 bytes a lane. It comes and goes as whole lines of
// device memory, a chunk a lane at a time; a lane reads and writes its own chunks, which lie where no two
// lanes of a quarter of a warp meet in the banks.
template <int kChunks>
class StagedTile {
 public:
  // Starts to copy a tile from an array in device memory on a border of 16 bytes, by a whole warp.
  __device__ void start_copy(const void* from, std::uint32_t tile, int lane) {
    const uint4* chunks = static_cast<const uint4*>(from) + first_of(tile, lane);
    const auto there = static_cast<std::uint32_t>(__cvta_generic_to_shared(&chunk_[moved(lane, lane >> 3)]));
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      constexpr int kStep = kWarp * static_cast<int>(sizeof(uint4));
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there + static_cast<std::uint32_t>(i * kStep)),
          "l"(chunks + i * kWarp)
          : "memory");
    }
  }
  // Writes it back; the warp's lanes have set() theirs and met.
  __device__ void store(void* to, std::uint32_t tile, int lane) const {
    __builtin_assume(__isGlobal(to));
    uint4* chunks = static_cast<uint4*>(to) + first_of(tile, lane);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) chunks[i * kWarp] = chunk_[moved(lane, lane >> 3) + i * kWarp];
  }
  __device__ uint4 get(int lane, int i) const { return chunk_[place(lane, i)]; }
  __device__ void set(int lane, int i, uint4 chunk) { chunk_[place(lane, i)] = chunk; }

 private:
  static __device__ std::uint32_t first_of(std::uint32_t tile, int lane) {
    return tile * unsigned{kWarp * kChunks} + static_cast<unsigned>(lane);
  }
  // The chunk's place among eight is moved by which eight they are.
  static __device__ int moved(int chunk, int eight) { return chunk ^ (eight & (kChunks - 1)); }
  static __device__ int place(int lane, int i) { return lane * kChunks + moved(i, lane * kChunks >> 3); }

  uint4 chunk_[kWarp * kChunks];
};
template <Format kFormat>
using Staged = StagedTile<kFormat == Format::kFp32   ? 4
                          : kFormat == Format::kBf16 ? 2
                                                     : 1>;

// Quad q of a lane, as FP32.
__device__ inline Quad quad_of(const StagedTile<4>& stage, int lane, int q) {
  const uint4 x = stage.get(lane, q);
  return {{__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)}};
}
__device__ inline Quad quad_of(const StagedTile<2>& stage, int lane, int q) {
  const uint4 eight = stage.get(lane, q / 2);
  const uint2 x = q % 2 == 0 ? make_uint2(eight.x, eight.y) : make_uint2(eight.z, eight.w);
  return {{__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xFFFF0000u), __uint_as_float(x.y << 16),
           __uint_as_float(x.y & 0xFFFF0000u)}};
}

// A lane's codes of one byte.
struct Bytes {
  std::uint32_t quad[kLaneQuads];
};
__device__ inline Bytes bytes_of(const StagedTile<1>& stage, int lane) {
  const uint4 x = stage.get(lane, 0);
  return {{x.x, x.y, x.z, x.w}};
}

// A tile's elements on their way from device memory: the next one's come while a warp works on its last.
template <WeightFormat kWeights, Format kGradient>
struct Stage {
  static constexpr Format kValue = kWeights == WeightFormat::kFp32 ? Format::kFp32 : Format::kBf16;
  static constexpr bool kResiduals = kWeights == WeightFormat::kBf16Residual;
  // Values and residuals are read last, when those of the next tile have been asked for.
  Staged<kValue> value[2];
  Staged<kGradient> gradient;
  StagedTile<1> m, v, residual[kResiduals ? 2 : 1];
};

// Element `index` of an array in global memory: the compiler cannot know where pointers from memory lead.
template <typename T>
__device__ inline T& global_at(void* data, std::uint32_t index) {
  __builtin_assume(__isGlobal(data));
  return static_cast<T*>(data)[index];
}
// Bounds within which the arithmetic below is exact; of the smallest that is not zero, and the largest.
inline constexpr float kSmallest = 0x1p-100f, kLargestM = 0x1p60f, kLargestV = 0x1p40f;

// In the place of v = 0: it has code 0 as well, for it lies 2^26 below kSmallest, and its root is less than
// half a unit of the last place of any eps that suits() (adamw_fast.cc).
inline constexpr float kAlmostZero = 0x1p-126f;

// sqrt(v), as IEEE rounds it.
__device__ inline float root_of(float v) {
  float reciprocal;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(v));
  const float root = v * reciprocal, half = 0.5f * reciprocal;
  return __fmaf_rn(__fmaf_rn(-root, root, v), half, root);
}

// philox4x32() with the launch's keys, which are the same for all of it.
__device__ inline PhiloxBlock random_block(PhiloxBlock counter, const StepScalars& scalars) {
  auto& [c0, c1, c2, c3] = counter.word;
#pragma unroll
  for (int round = 0; round < kRoundingRounds; ++round) philox_round(c0, c1, c2, c3, scalars.keys[round]);
  return counter;
}

// round_bf16_stochastic() of four finite values below 2^120, with weight_rounding_bits().
template <int kHalf>
__device__ inline uint2 rounded_halves(const Quad& value, const PhiloxBlock& random) {
  std::uint32_t rounded[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    rounded[i] = __float_as_uint(value.x[i]) + __byte_perm(random.word[i], 0, kHalf == 0 ? 0x4401 : 0x4423);
  }
  return {__byte_perm(rounded[0], rounded[1], 0x7632), __byte_perm(rounded[2], rounded[3], 0x7632)};
}

// join_weight() of four.
__device__ inline Quad joined_weights(const Quad& bf16, std::uint32_t residuals) {
  Quad value;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const auto residual = static_cast<std::int32_t>(residuals << (24 - 8 * i)) >> 24;
    value.x[i] = __uint_as_float(__float_as_uint(bf16.x[i]) + (static_cast<std::uint32_t>(residual) << 8));
  }
  return value;
}

// split_weight() of four finite values below 2^120. The bits' carries do not reach the sign.
struct SplitQuad {
  uint2 halves;
  std::uint32_t residuals;
};
__device__ inline SplitQuad split_weights(const Quad& value) {
  std::uint32_t kept[kQuad], nearest[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const std::uint32_t bits = __float_as_uint(value.x[i]);
    kept[i] = bits + 0x7Fu + (bits >> 8 & 1u);
    nearest[i] = kept[i] + 0x8000u;
  }
  return {{__byte_perm(nearest[0], nearest[1], 0x7632), __byte_perm(nearest[2], nearest[3], 0x7632)},
          packed_bytes<1>(kept)};
}

}  // namespace coat::kernels::cuda::adamw_fast
