// The optimizer step on whole tiles: four groups of 128 elements by one warp. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_fast_parts.cuh"

namespace coat::kernels::cuda::adamw_fast {

inline constexpr int kGroup = 128, kGroups = 4;
static_assert(kTile == kGroup * kGroups);
inline constexpr int kMoments = 2 * kGroups;  // groups of both moments: m and v by turns

// What a warp's lanes tell each other.
struct Exchange {
  uint4 decoders[kMoments];
  float2 scales[kGroups];  // of m and v: what is left of amax
  Range ranges[kMoments];
  uint4 encoders[kMoments];
};

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
    slot_ ^= 1;
    start_copy(stage_.value[slot_], t.value, tile, lane());
    start_copy(stage_.gradient, t.gradient, tile, lane());
    start_copy(stage_.m, t.moments[0].stored, tile, lane());
    start_copy(stage_.v, t.moments[1].stored, tile, lane());
    if constexpr (kResiduals) start_copy(stage_.residual[slot_], t.residual, tile, lane());
    if (lane() >= kMoments) return;
    const GroupData& data = t.moments[threadIdx.x % 2];
    amax_ = global_at<float>(data.amax, group_of(tile));
    row_ = global_at<std::uint8_t>(data.row, group_of(tile));
  }

  // The tile that was fetched. False: nothing is done, the general code is needed. next() is called in any
  // case.
  template <typename Next>
  __device__ bool step(const TensorEntry& t, std::uint32_t tile, Next next) {
    make_decoders();
    Quad m[kGroups], v[kGroups];
    const int slot = slot_;
    decode_v(v);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int quad = g * kWarp + lane();
      m[g] = Moment1::decode(tables_.first, exchange_.decoders[2 * g], stage_.m[quad]);
      add_gradient(values_of(stage_.gradient[quad]), g, m[g], v[g]);
      tell_range(range_of(m[g], v[g]), g);
    }
    const bool values_fit = are_small(stage_.value[slot] + lane());
    __syncwarp();  // the stage is read, the ranges are written
    next();
    const Target target{
        t.value,
        t.residual,
        t.moments[0].stored,
        t.moments[1].stored,
        tile * unsigned{kTile / kQuad} + static_cast<unsigned>(lane()),
        static_cast<std::uint64_t>(t.first_index) / RoundingPlace::kTile * RoundingPlace::kBlocksOfTile +
            std::uint64_t{tile} * (kGroups / 2 * kWarp) + static_cast<unsigned>(lane()),
        t.id,
        t.keep};
    if (have_zeros()) leave_zeros_out(m, v);
    if (!make_encoders(t, tile, values_fit)) return false;
    finish(target, slot, m, v);
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
  static __device__ bool are_small(const RawQuad<Format::kBf16>* raw) {
    std::uint32_t largest = 0;  // twice the codes, which drops the sign
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const uint2 codes = raw[g * kWarp].x;
      largest = __viaddmax_u16x2(codes.x, codes.x, largest);
      largest = __viaddmax_u16x2(codes.y, codes.y, largest);
    }
    constexpr std::uint32_t kLimit = (127 + 99) << 8;
    return (largest & 0xFFFFu) < kLimit && largest >> 16 < kLimit;
  }
  static __device__ bool are_small(const RawQuad<Format::kFp32>*) { return true; }

  // Waits for what was fetched.
  __device__ void make_decoders() {
    if (lane() < kMoments) {
      exchange_.decoders[lane()] = decoder();
      reinterpret_cast<float*>(exchange_.scales)[lane()] =
          (is_m() ? launch_.scalars.beta1 : launch_.scalars.beta2) * amax_;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
  }
  __device__ uint4 decoder() const {
    if constexpr (kOctaves) return octave_decoder(octaves(), row_);
    return is_m() ? decoder<Moment1>(tables_.first) : decoder<Moment2>(tables_.second);
  }
  template <typename Moment>
  __device__ uint4 decoder(const typename Moment::Table& table) const {
    if constexpr (Moment::kOctave) {
      return octave_decoder(table, row_);
    } else {
      return Moment::decoder(table, row_);
    }
  }
  __device__ Encoding encoder(const Range& range) const {
    if constexpr (kOctaves) return octave_encoder(octaves(), range);
    return is_m() ? encoder<Moment1>(tables_.first, launch_.store1, range)
                  : encoder<Moment2>(tables_.second, launch_.store2, range);
  }
  template <typename Moment>
  __device__ Encoding encoder(const typename Moment::Table& table, const MomentStore& store,
                              const Range& range) const {
    if constexpr (Moment::kOctave) {
      return octave_encoder(table, range);
    } else {
      return Moment::encoder(table, store, range);
    }
  }
  static constexpr bool kOctaves = Moment1::kOctave && Moment2::kOctave;
  __device__ const OctaveTables& octaves() const {
    return is_m() ? static_cast<const OctaveTables&>(tables_.first)
                  : static_cast<const OctaveTables&>(tables_.second);
  }

  __device__ void decode_v(Quad (&v)[kGroups]) const {
    std::uint32_t packed[kGroups], zeros = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      packed[g] = stage_.v[g * kWarp + lane()];
      v[g] = Moment2::decode(tables_.second, exchange_.decoders[2 * g + 1], packed[g]);
      zeros |= (packed[g] - 0x01010101u) & ~packed[g];  // the sign bit of a byte, and others, of a zero
    }
    if constexpr (!Moment2::kDecodesZero) {
      if ((zeros & 0x80808080u) == 0) return;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          if ((packed[g] >> (8 * i) & 0xFFu) == 0) v[g].x[i] = 0.0f;
        }
      }
    }
  }

  // New moments from what the old ones' codes stand for.
  __device__ void add_gradient(const Quad& gradient, int g, Quad& m, Quad& v) const {
    const auto [m_scale, v_scale] = exchange_.scales[g];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float h = gradient_factor_ * gradient.x[i];
      m.x[i] = __fmaf_rn(m.x[i], m_scale, h);
      v.x[i] = __fmaf_rn(v.x[i], v_scale, launch_.scalars.square * h * h);
    }
  }

  // Of the warp's elements of a group, zeros too. v has no sign: beta2 v + ... of what is not negative.
  struct Ranges {
    Range m, v;
  };
  static __device__ Ranges range_of(const Quad& m, const Quad& v) {
    float largest = fabsf(m.x[0]), smallest = largest;
    Range second{__float_as_uint(v.x[0]), __float_as_uint(v.x[0])};
#pragma unroll
    for (int i = 1; i < kQuad; ++i) {
      largest = larger_or_nan(largest, fabsf(m.x[i]));
      smallest = fminf(smallest, fabsf(m.x[i]));
      second.largest = max(second.largest, __float_as_uint(v.x[i]));
      second.smallest = min(second.smallest, __float_as_uint(v.x[i]));
    }
    return {reduced({__float_as_uint(largest), __float_as_uint(smallest)}), reduced(second)};
  }
  static __device__ float larger_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
  static __device__ Range reduced(const Range& range) {
    return {__reduce_max_sync(kWholeWarp, range.largest), __reduce_min_sync(kWholeWarp, range.smallest)};
  }
  __device__ void tell_range(const Ranges& ranges, int g) {
    if (lane() != 0) return;
    exchange_.ranges[2 * g] = ranges.m;
    exchange_.ranges[2 * g + 1] = ranges.v;
  }

  __device__ bool have_zeros() const {
    return __any_sync(kWholeWarp, exchange_.ranges[threadIdx.x % kMoments].smallest == 0);
  }
  // Finds the groups' smallest again, of what is not zero, and leaves no -0 in m and no 0 in v.
  __device__ void leave_zeros_out(Quad (&m)[kGroups], Quad (&v)[kGroups]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::uint32_t smallest[] = {smallest_but_zero(m[g]), smallest_but_zero(v[g])};
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        m[g].x[i] += 0.0f;
        v[g].x[i] = fmaxf(v[g].x[i], kAlmostZero);
      }
      if (lane() == 0) {
        exchange_.ranges[2 * g].smallest = smallest[0];
        exchange_.ranges[2 * g + 1].smallest = smallest[1];
      }
    }
    __syncwarp();
  }
  static __device__ std::uint32_t smallest_but_zero(const Quad& quad) {
    std::uint32_t smallest = kNoMagnitude;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const std::uint32_t bits = magnitude_bits(quad.x[i]);
      smallest = min(smallest, bits == 0 ? kNoMagnitude : bits);
    }
    return __reduce_min_sync(kWholeWarp, smallest);
  }

  // Stores amax and row of all groups, unless one of them does not suit this code: false.
  __device__ bool make_encoders(const TensorEntry& t, std::uint32_t tile, bool values_fit) {
    const unsigned place = threadIdx.x % kMoments;
    const Range range = exchange_.ranges[place];
    const Encoding encoding = encoder(range);
    const bool inside = range.smallest >= __float_as_uint(kSmallest) &&
                        range.largest <= __float_as_uint(is_m() ? kLargestM : kLargestV);
    const bool suits = range.largest == 0 || (inside && encoding.fits);
    if (!__all_sync(kWholeWarp, suits && values_fit)) return false;
    if (lane() < kMoments) {
      exchange_.encoders[place] = encoding.words;
      const GroupData& data = t.moments[threadIdx.x % 2];
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
    std::uint64_t block;  // of random numbers, of the first two groups; the others' are kWarp further on
    std::uint32_t id;
    float keep;
  };

  __device__ void finish(const Target& to, int slot, const Quad (&m)[kGroups],
                         const Quad (&v)[kGroups]) const {
#pragma unroll
    for (int pair = 0; pair < kGroups / 2; ++pair) {
      const PhiloxStream random{launch_.scalars.seed, launch_.scalars.step, to.id};
      const PhiloxBlock block =
          random_block(random.counter(to.block + static_cast<unsigned>(pair * kWarp)), launch_.scalars);
      const auto finish_group = [&]<int kHalf>() {
        const int g = 2 * pair + kHalf, quad = g * kWarp + lane();
        Quad value = values_of(stage_.value[slot][quad]);
        if constexpr (kResiduals) value = joined_weights(value, stage_.residual[slot][quad]);
        take_step(to.keep, m[g], v[g], value);
        store<kHalf>(to, g, value, m[g], v[g], block);
      };
      finish_group.template operator()<0>();
      finish_group.template operator()<1>();
    }
  }

  __device__ void take_step(float keep, const Quad& m, const Quad& v, Quad& value) const {
    const StepScalars& s = launch_.scalars;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float direction = m.x[i] * reciprocal_of(root_of(v.x[i]) + s.eps);
      value.x[i] = __fmaf_rn(-s.step_size, direction, keep * value.x[i]);
    }
  }

  template <int kHalf>
  __device__ void store(const Target& to, int g, const Quad& value, const Quad& m, const Quad& v,
                        const PhiloxBlock& random) const {
    const std::uint32_t quad = to.quad + static_cast<unsigned>(g * kWarp);
    store_whole_value<kHalf>(to, quad, value, random);
    global_at<std::uint32_t>(to.m, quad) =
        Moment1::template encode<kHalf>(tables_.first, exchange_.encoders[2 * g], m, random);
    global_at<std::uint32_t>(to.v, quad) =
        Moment2::template encode<kHalf>(tables_.second, exchange_.encoders[2 * g + 1], v, random);
  }

  template <int kHalf>
  static __device__ void store_whole_value(const Target& to, std::uint32_t quad, const Quad& value,
                                           const PhiloxBlock& random) {
    if constexpr (kWeights == WeightFormat::kFp32) {
      global_at<float4>(to.value, quad) = make_float4(value.x[0], value.x[1], value.x[2], value.x[3]);
    } else if constexpr (kWeights == WeightFormat::kBf16Stochastic) {
      global_at<uint2>(to.value, quad) = rounded_halves<kHalf>(value, random);
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
  int slot_ = 0;  // of that tile
};

}  // namespace coat::kernels::cuda::adamw_fast
