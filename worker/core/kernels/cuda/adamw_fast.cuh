// The optimizer step on whole tiles: four groups of 128 elements by one warp. Device code only.
//
// Roots and reciprocals are those of IEEE, by the steps that the compiler itself takes within the range of
// normal numbers: the hardware's approximation, corrected by its remainder. A tile that might leave that
// range is left to the general code, before anything is written.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_fast.h"
#include "worker/core/kernels/cuda/adamw_fast_codes.cuh"
#include "worker/core/kernels/cuda/adamw_parts.cuh"

namespace coat::kernels::cuda::adamw_fast {

inline constexpr int kGroup = 128, kGroups = 4;
static_assert(kTile == kGroup * kGroups);
inline constexpr int kMoments = 2 * kGroups;  // groups of both moments: m and v by turns

// What a warp's lanes tell each other.
struct Exchange {
  uint4 decoders[kMoments];
  Range ranges[kMoments];
  uint4 encoders[kMoments];
};

// Four values as they are stored.
template <Format kFormat>
struct RawQuad;
template <>
struct RawQuad<Format::kFp32> {
  float4 x;
};
template <>
struct RawQuad<Format::kBf16> {
  uint2 x;
};

// A tile's elements on their way from device memory: the next one's come while a warp works on its last.
template <WeightFormat kWeights, Format kGradient>
struct Stage {
  static constexpr Format kValue = kWeights == WeightFormat::kFp32 ? Format::kFp32 : Format::kBf16;
  static constexpr bool kResiduals = kWeights == WeightFormat::kBf16Residual;
  RawQuad<kValue> value[kTile / kQuad];
  RawQuad<kGradient> gradient[kTile / kQuad];
  alignas(16) std::uint32_t m[kTile / kQuad], v[kTile / kQuad], residual[kResiduals ? kTile / kQuad : 4];
};

// Starts the copy of a tile's part of an array in device memory, on a border of 16 bytes, by a whole warp.
template <typename T, std::size_t kCount>
__device__ inline void start_copy(T (&to)[kCount], const void* from, std::uint32_t tile, int lane) {
  constexpr unsigned kChunks = sizeof(T) * kCount / sizeof(uint4);
  static_assert(kChunks % kWarp == 0);
  const uint4* chunks = static_cast<const uint4*>(from) + (tile * kChunks + static_cast<unsigned>(lane));
  constexpr std::uint32_t kChunk16 = sizeof(uint4);
  const std::uint32_t there =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(to)) + kChunk16 * static_cast<std::uint32_t>(lane);
#pragma unroll
  for (unsigned i = 0; i < kChunks; i += kWarp) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there + i * kChunk16), "l"(chunks + i)
                 : "memory");
  }
}

// Element `index` of an array in global memory: the compiler cannot know where pointers from memory lead.
template <typename T>
__device__ inline T& global_at(void* data, std::uint32_t index) {
  __builtin_assume(__isGlobal(data));
  return static_cast<T*>(data)[index];
}
__device__ inline Quad values_of(const RawQuad<Format::kFp32>& raw) {
  return {{raw.x.x, raw.x.y, raw.x.z, raw.x.w}};
}
__device__ inline Quad values_of(const RawQuad<Format::kBf16>& raw) {
  return {{__uint_as_float(raw.x.x << 16), __uint_as_float(raw.x.x & 0xFFFF0000u),
           __uint_as_float(raw.x.y << 16), __uint_as_float(raw.x.y & 0xFFFF0000u)}};
}

// Bounds within which the arithmetic below is exact; of the smallest that is not zero, and the largest.
inline constexpr float kSmallest = 0x1p-100f, kLargestM = 0x1p60f, kLargestV = 0x1p40f;

// sqrt(v), as IEEE rounds it. v = 0 gives less than half a unit of the last place of any eps from
// kSmallestEps on.
inline constexpr float kSmallestEps = 0x1p-33f;
__device__ inline float root_of(float v) {
  float reciprocal;
  const float x = fmaxf(v, 0x1p-117f);
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  const float root = x * reciprocal, half = 0.5f * reciprocal;
  return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
}

// 1 / x, as IEEE rounds it.
__device__ inline float reciprocal_of(float x) {
  const float reciprocal = approximate_reciprocal(x);
  return __fmaf_rn(reciprocal, __fmaf_rn(-x, reciprocal, 1.0f), reciprocal);
}

// philox4x32() with the launch's keys, which are the same for all of it.
__device__ inline Words random_block(PhiloxBlock counter, const StepScalars& scalars) {
  auto& [c0, c1, c2, c3] = counter.word;
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) philox_round(c0, c1, c2, c3, scalars.keys[round]);
  return {{c0, c1, c2, c3}};
}

// round_bf16_stochastic() of four finite values below 2^120.
__device__ inline uint2 rounded_halves(const Quad& value, const Words& words) {
  std::uint32_t rounded[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const std::uint32_t word = words.word[i];
    rounded[i] = __float_as_uint(value.x[i]) + (~(word ^ word >> 16) & 0xFFFFu);
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

// The tables of both moments; one where they are the same.
template <typename First, typename Second>
struct Tables {
  First first;
  Second second;
  __device__ void load(const MomentStore& store1, const MomentStore& store2) {
    first.load(store1);
    second.load(store2);
  }
};
template <typename Both>
struct Tables<Both, Both> {
  union {
    Both first, second;
  };
  __device__ void load(const MomentStore& store1, const MomentStore&) { first.load(store1); }
};

// One warp's work on whole tiles: fetch() one, then step() it, which calls back when the next may be fetched.
template <WeightFormat kWeights, Format kGradient, typename Moment1, typename Moment2>
class WholeTile {
 public:
  using Shared = Tables<typename Moment1::Table, typename Moment2::Table>;
  struct WarpShared {
    Stage<kWeights, kGradient> stage;
    Exchange exchange;
  };

  __device__ WholeTile(const Shared& tables, WarpShared& mine, const AdamWLaunch& launch,
                       float gradient_factor)
      : tables_(tables),
        stage_(mine.stage),
        exchange_(mine.exchange),
        launch_(launch),
        gradient_factor_(gradient_factor) {}

  // Starts to read a tile of `t`.
  __device__ void fetch(const TensorEntry& t, std::uint32_t tile) {
    start_copy(stage_.value, t.value, tile, lane());
    start_copy(stage_.gradient, t.gradient, tile, lane());
    start_copy(stage_.m, t.m.stored, tile, lane());
    start_copy(stage_.v, t.v.stored, tile, lane());
    if constexpr (kResiduals) start_copy(stage_.residual, t.residual, tile, lane());
    if (lane() >= kMoments) return;
    const GroupData& data = is_m() ? t.m : t.v;
    amax_ = global_at<float>(data.amax, group_of(tile));
    row_ = global_at<std::uint8_t>(data.row, group_of(tile));
  }

  // The tile that was fetched. False: nothing is done, the general code is needed. next() is called in any
  // case.
  template <typename Next>
  __device__ bool step(const TensorEntry& t, std::uint32_t tile, Next next) {
    make_decoders();
    Quad m[kGroups], v[kGroups];
    RawQuad<kValue> value[kGroups];
    std::uint32_t residual[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int quad = g * kWarp + lane();
      m[g] = Moment1::decode(tables_.first, exchange_.decoders[2 * g], stage_.m[quad]);
      v[g] = Moment2::decode(tables_.second, exchange_.decoders[2 * g + 1], stage_.v[quad]);
      add_gradient(values_of(stage_.gradient[quad]), m[g], v[g]);
      find_range<true>(m[g], 2 * g);
      find_range<false>(v[g], 2 * g + 1);
      value[g] = stage_.value[quad];
      if constexpr (kResiduals) residual[g] = stage_.residual[quad];
    }
    const bool values_fit = are_small(value);
    __syncwarp();  // the stage is read, the ranges are written
    next();
    if (!make_encoders(t, tile, values_fit)) return false;
    const Target target{t.value,
                        t.residual,
                        t.m.stored,
                        t.v.stored,
                        tile * unsigned{kTile / kQuad} + static_cast<unsigned>(lane()),
                        static_cast<std::uint64_t>(t.first_index / kQuad),
                        t.id,
                        t.keep};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      Quad exact = values_of(value[g]);
      if constexpr (kResiduals) exact = joined_weights(exact, residual[g]);
      finish(target, g, exact, m[g], v[g]);
    }
    return true;
  }

 private:
  static constexpr Format kValue = Stage<kWeights, kGradient>::kValue;
  static constexpr bool kResiduals = Stage<kWeights, kGradient>::kResiduals;

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  // Lane 2 g looks after m of group g, lane 2 g + 1 after v; those from kMoments on do the same again.
  static __device__ bool is_m() { return threadIdx.x % 2 == 0; }
  static __device__ std::uint32_t group_of(std::uint32_t tile) {
    return tile * kGroups + threadIdx.x % kMoments / 2;
  }

  // BF16 values below 2^99, so that a step leaves them finite; NaN is none. Others need no care.
  static __device__ bool are_small(const RawQuad<Format::kBf16> (&raw)[kGroups]) {
    std::uint32_t largest = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      largest = __vmaxu2(largest, raw[g].x.x & 0x7FFF7FFFu);
      largest = __vmaxu2(largest, raw[g].x.y & 0x7FFF7FFFu);
    }
    constexpr std::uint32_t kLimit = (127 + 99) << 7;
    return (largest & 0xFFFFu) < kLimit && largest >> 16 < kLimit;
  }
  static __device__ bool are_small(const RawQuad<Format::kFp32> (&)[kGroups]) { return true; }

  // Waits for what was fetched.
  __device__ void make_decoders() {
    if (lane() < kMoments) {
      exchange_.decoders[lane()] = is_m() ? Moment1::decoder(tables_.first, amax_, row_)
                                          : Moment2::decoder(tables_.second, amax_, row_);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
  }

  __device__ void add_gradient(const Quad& gradient, Quad& m, Quad& v) const {
    const StepScalars& s = launch_.scalars;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float h = gradient_factor_ * gradient.x[i];
      m.x[i] = __fmaf_rn(s.beta1, m.x[i], h);
      v.x[i] = __fmaf_rn(s.beta2, v.x[i], s.square * h * h);
    }
  }

  // v has no sign: beta2 v + ... of what is not negative.
  template <bool kSigned>
  __device__ void find_range(const Quad& quad, int place) {
    std::uint32_t largest = 0, smallest = kNoMagnitude;  // the smallest less 1, so that 0 is above all
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const std::uint32_t bits = kSigned ? magnitude_bits(quad.x[i]) : __float_as_uint(quad.x[i]);
      largest = max(largest, bits);
      smallest = __viaddmin_u32(bits, 0xFFFFFFFFu, smallest);
    }
    largest = __reduce_max_sync(kWholeWarp, largest);
    smallest = __reduce_min_sync(kWholeWarp, smallest);
    if (lane() == 0) exchange_.ranges[place] = {largest, smallest};
  }

  // Stores amax and row of all groups, unless one of them does not suit this code: false.
  __device__ bool make_encoders(const TensorEntry& t, std::uint32_t tile, bool values_fit) {
    const unsigned place = threadIdx.x % kMoments;
    Range range = exchange_.ranges[place];
    ++range.smallest;
    const Encoding encoding = is_m() ? Moment1::encoder(tables_.first, launch_.store1, range)
                                     : Moment2::encoder(tables_.second, launch_.store2, range);
    const bool inside = range.smallest >= __float_as_uint(kSmallest) &&
                        range.largest <= __float_as_uint(is_m() ? kLargestM : kLargestV);
    const bool suits = range.largest == 0 || (inside && encoding.fits);
    if (!__all_sync(kWholeWarp, suits && values_fit)) return false;
    if (lane() < kMoments) {
      exchange_.encoders[place] = encoding.words;
      const GroupData& data = is_m() ? t.m : t.v;
      global_at<float>(data.amax, group_of(tile)) = __uint_as_float(range.largest);
      global_at<std::uint8_t>(data.row, group_of(tile)) = static_cast<std::uint8_t>(encoding.row);
    }
    __syncwarp();
    return true;
  }

  // Where a thread's elements of the tile go: those of group g lie g * kWarp quads from `quad` on.
  struct Target {
    void* value;
    void* residual;
    void* m;
    void* v;
    std::uint32_t quad;
    std::uint64_t first_block;  // of random numbers
    std::uint32_t id;
    float keep;
  };

  __device__ void finish(const Target& to, int g, Quad value, const Quad& m, const Quad& v) const {
    const StepScalars& s = launch_.scalars;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float direction = m.x[i] * reciprocal_of(root_of(v.x[i]) + s.eps);
      value.x[i] = __fmaf_rn(-s.step_size, direction, to.keep * value.x[i]);
    }
    const PhiloxStream random{s.seed, s.step, to.id};
    const std::uint32_t quad = to.quad + static_cast<unsigned>(g * kWarp);
    const Words words = random_block(random.counter(to.first_block + quad), s);
    store_whole_value(to, quad, value, words);
    global_at<std::uint32_t>(to.m, quad) =
        Moment1::encode(tables_.first, exchange_.encoders[2 * g], m, words);
    global_at<std::uint32_t>(to.v, quad) =
        Moment2::encode(tables_.second, exchange_.encoders[2 * g + 1], v, words);
  }

  static __device__ void store_whole_value(const Target& to, std::uint32_t quad, const Quad& value,
                                           const Words& words) {
    if constexpr (kWeights == WeightFormat::kFp32) {
      global_at<float4>(to.value, quad) = make_float4(value.x[0], value.x[1], value.x[2], value.x[3]);
    } else if constexpr (kWeights == WeightFormat::kBf16Stochastic) {
      global_at<uint2>(to.value, quad) = rounded_halves(value, words);
    } else {
      const SplitQuad split = split_weights(value);
      global_at<uint2>(to.value, quad) = split.halves;
      global_at<std::uint32_t>(to.residual, quad) = split.residuals;
    }
  }

  const Shared& tables_;
  Stage<kWeights, kGradient>& stage_;
  Exchange& exchange_;
  const AdamWLaunch& launch_;
  float gradient_factor_;
  float amax_ = 0;  // of the group that this lane looks after, in the tile that is fetched
  int row_ = 0;
};

}  // namespace coat::kernels::cuda::adamw_fast
