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

// Element `index` of an array in global memory: the compiler cannot know where pointers from memory lead.
template <typename T>
__device__ inline T& global_at(void* data, std::int64_t index) {
  __builtin_assume(__isGlobal(data));
  return static_cast<T*>(data)[index];
}
template <typename T>
__device__ inline const T& global_at(const void* data, std::int64_t index) {
  __builtin_assume(__isGlobal(data));
  return static_cast<const T*>(data)[index];
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

template <WeightFormat kWeights, Format kGradient, typename Moment1, typename Moment2>
class WholeTile {
 public:
  using Shared = Tables<typename Moment1::Table, typename Moment2::Table>;

  __device__ WholeTile(const TensorEntry& t, const Shared& shared, Exchange& exchange,
                       const AdamWLaunch& launch, float gradient_factor)
      : t_(t),
        shared_(shared),
        exchange_(exchange),
        launch_(launch),
        gradient_factor_(gradient_factor),
        keep_(t.keep),
        value_(t.value),
        gradient_(t.gradient),
        m_codes_(t.m.stored),
        v_codes_(t.v.stored),
        first_block_(static_cast<std::uint64_t>(t.first_index / kQuad)),
        id_(t.id) {}

  // The elements from `first` on. False: nothing is done, the general code is needed.
  __device__ bool step(std::int64_t first) {
    const std::int64_t quad = first / kQuad + lane();
    RawQuad<kGradient> gradient[kGroups];
    RawQuad<kValue> value[kGroups];
    std::uint32_t m_codes[kGroups], v_codes[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      m_codes[g] = global_at<std::uint32_t>(m_codes_, quad + g * kWarp);
      v_codes[g] = global_at<std::uint32_t>(v_codes_, quad + g * kWarp);
      gradient[g] = global_at<RawQuad<kGradient>>(gradient_, quad + g * kWarp);
      value[g] = global_at<RawQuad<kValue>>(value_, quad + g * kWarp);
    }
    const bool values_fit = are_small(value);
    make_decoders(first / kGroup);
    Quad m[kGroups], v[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      m[g] = Moment1::decode(shared_.first, exchange_.decoders[2 * g], m_codes[g]);
      v[g] = Moment2::decode(shared_.second, exchange_.decoders[2 * g + 1], v_codes[g]);
      add_gradient(values_of(gradient[g]), m[g], v[g]);
      find_range<true>(m[g], 2 * g);
      find_range<false>(v[g], 2 * g + 1);
    }
    if (!make_encoders(first / kGroup, values_fit)) return false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) finish(quad + g * kWarp, g, value[g], m[g], v[g]);
    __syncwarp();  // the encoders are read
    return true;
  }

 private:
  static constexpr Format kValue = kWeights == WeightFormat::kFp32 ? Format::kFp32 : Format::kBf16;

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

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

  // Lane 2 g looks after m of group g, lane 2 g + 1 after v; the others do the same again.
  __device__ void make_decoders(std::int64_t first_group) {
    const int place = lane() % kMoments;
    const std::int64_t group = first_group + place / 2;
    if (lane() < kMoments) {
      const GroupData& data = place % 2 == 0 ? t_.m : t_.v;
      const float amax = global_at<float>(data.amax, group);
      const int row = global_at<std::uint8_t>(data.row, group);
      exchange_.decoders[place] = place % 2 == 0 ? Moment1::decoder(shared_.first, amax, row)
                                                 : Moment2::decoder(shared_.second, amax, row);
    }
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
    if (lane() == 0) exchange_.ranges[place] = {largest, smallest + 1};
  }

  // Stores amax and row of all groups, unless one of them does not suit this code: false.
  __device__ bool make_encoders(std::int64_t first_group, bool values_fit) {
    __syncwarp();
    const int place = lane() % kMoments;
    const bool is_m = place % 2 == 0;
    const Range range = exchange_.ranges[place];
    const Encoding encoding = is_m ? Moment1::encoder(shared_.first, launch_.store1, range)
                                   : Moment2::encoder(shared_.second, launch_.store2, range);
    const bool inside = range.smallest >= __float_as_uint(kSmallest) &&
                        range.largest <= __float_as_uint(is_m ? kLargestM : kLargestV);
    const bool suits = range.largest == 0 || (inside && encoding.fits);
    if (!__all_sync(kWholeWarp, suits && values_fit)) return false;
    if (lane() < kMoments) {
      exchange_.encoders[place] = encoding.words;
      const GroupData& data = is_m ? t_.m : t_.v;
      global_at<float>(data.amax, first_group + place / 2) = __uint_as_float(range.largest);
      global_at<std::uint8_t>(data.row, first_group + place / 2) = static_cast<std::uint8_t>(encoding.row);
    }
    __syncwarp();
    return true;
  }

  __device__ void finish(std::int64_t quad, int g, const RawQuad<kValue>& raw, const Quad& m,
                         const Quad& v) const {
    const StepScalars& s = launch_.scalars;
    Quad value = values_of(raw);
    if constexpr (kWeights == WeightFormat::kBf16Residual) {
      value = load_value(kWeights, t_, {quad * kQuad, kQuad, true});
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float direction = m.x[i] * reciprocal_of(root_of(v.x[i]) + s.eps);
      value.x[i] = __fmaf_rn(-s.step_size, direction, keep_ * value.x[i]);
    }
    const PhiloxStream random{s.seed, s.step, id_};
    const Words words = random_block(random.counter(first_block_ + static_cast<std::uint64_t>(quad)), s);
    store_whole_value(quad, value, words);
    global_at<std::uint32_t>(m_codes_, quad) =
        Moment1::encode(shared_.first, exchange_.encoders[2 * g], m, words);
    global_at<std::uint32_t>(v_codes_, quad) =
        Moment2::encode(shared_.second, exchange_.encoders[2 * g + 1], v, words);
  }

  __device__ void store_whole_value(std::int64_t quad, const Quad& value, const Words& words) const {
    if constexpr (kWeights == WeightFormat::kFp32) {
      global_at<float4>(value_, quad) = make_float4(value.x[0], value.x[1], value.x[2], value.x[3]);
    } else if constexpr (kWeights == WeightFormat::kBf16Stochastic) {
      global_at<uint2>(value_, quad) = rounded_halves(value, words);
    } else {
      store_value(kWeights, t_, {quad * kQuad, kQuad, true}, value, words);
    }
  }

  const TensorEntry& t_;  // in device memory
  const Shared& shared_;
  Exchange& exchange_;
  const AdamWLaunch& launch_;
  float gradient_factor_, keep_;
  void* value_;
  const void* gradient_;
  void* m_codes_;
  void* v_codes_;
  std::uint64_t first_block_;
  std::uint32_t id_;
};

}  // namespace coat::kernels::cuda::adamw_fast
