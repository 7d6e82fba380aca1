// The optimizer step on whole tiles: four groups of 128 elements by one warp, a group by eight lanes. Device
// code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_fast_parts.cuh"

namespace coat::kernels::cuda::adamw_fast {

inline constexpr int kGroup = 128, kGroupLanes = kGroup / kLaneElements, kGroups = kTile / kGroup;

// What the lanes of a group tell each other: how to encode m and v.
struct Exchange {
  uint4 encoders[kGroups][2];
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
    stage_.value[slot_].start_copy(t.value, tile, lane());
    stage_.gradient.start_copy(t.gradient, tile, lane());
    stage_.m.start_copy(t.moments[0].stored, tile, lane());
    stage_.v.start_copy(t.moments[1].stored, tile, lane());
    if constexpr (kResiduals) stage_.residual[slot_].start_copy(t.residual, tile, lane());
    const std::uint32_t group = group_of(tile);
    amax1_ = global_at<float>(t.moments[0].amax, group);
    row1_ = global_at<std::uint8_t>(t.moments[0].row, group);
    amax2_ = global_at<float>(t.moments[1].amax, group);
    row2_ = global_at<std::uint8_t>(t.moments[1].row, group);
  }

  // The tile that was fetched. False: nothing is done, the general code is needed. next() is called in any
  // case.
  template <typename Next>
  __device__ bool step(const TensorEntry& t, std::uint32_t tile, Next next) {
    const uint4 decoder1 = decoder<Moment1>(tables_.first, row1_),
                decoder2 = decoder<Moment2>(tables_.second, row2_);
    const float m_scale = launch_.scalars.beta1 * amax1_ * __uint_as_float(decoder1.y),
                v_scale = launch_.scalars.beta2 * amax2_ * __uint_as_float(decoder2.y);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    Quad m[kLaneQuads], v[kLaneQuads];
    const int slot = slot_;
    decode_v(decoder2, v);
    const Bytes codes = bytes_of(stage_.m, lane());
#pragma unroll
    for (int q = 0; q < kLaneQuads; ++q) {
      m[q] = Moment1::decode(tables_.first, decoder1, codes.quad[q]);
      add_gradient(quad_of(stage_.gradient, lane(), q), m_scale, v_scale, m[q], v[q]);
    }
    const bool values_fit = are_small(stage_.value[slot]);
    const Target target{t.value,
                        t.residual,
                        t.moments[0].stored,
                        t.moments[1].stored,
                        tile,
                        static_cast<std::uint64_t>(t.first_index) / RoundingPlace::kElements +
                            std::uint64_t{tile} * (kWarp * kLaneBlocks) +
                            static_cast<unsigned>(lane() * kLaneBlocks),
                        t.id,
                        t.keep};
    __syncwarp();  // the stage is read
    next();
    Range range = range_of(m, v);
    if (__any_sync(kWholeWarp, range.smallest == 0)) range = range_without_zeros(range, m, v);
    if (!make_encoders(t, tile, range, values_fit)) return false;
    finish(target, slot, m, v);
    return true;
  }

 private:
  static constexpr Format kValue = Stage<kWeights, kGradient>::kValue;
  static constexpr bool kResiduals = Stage<kWeights, kGradient>::kResiduals;
  static constexpr int kLaneBlocks = kLaneElements / static_cast<int>(RoundingPlace::kElements);

  static __device__ int lane() { return static_cast<int>(threadIdx.x % kWarp); }
  // Of a group's lanes the even ones look after m, the odd ones after v.
  static __device__ bool is_m() { return lane() % 2 == 0; }
  static __device__ std::uint32_t group_of(std::uint32_t tile) {
    return tile * kGroups + static_cast<std::uint32_t>(lane() / kGroupLanes);
  }

  // BF16 values below 2^99, so that a step leaves them finite; NaN is none. Others need no care.
  static __device__ bool are_small(const Staged<Format::kBf16>& values) {
    std::uint32_t largest = 0;  // twice the codes, which drops the sign
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 codes = values.get(lane(), i);
      for (const std::uint32_t pair : {codes.x, codes.y, codes.z, codes.w}) {
        largest = __viaddmax_u16x2(pair, pair, largest);
      }
    }
    constexpr std::uint32_t kLimit = (127 + 99) << 8;
    return (largest & 0xFFFFu) < kLimit && largest >> 16 < kLimit;
  }
  static __device__ bool are_small(const Staged<Format::kFp32>&) { return true; }

  template <typename Moment>
  static __device__ uint4 decoder(const typename Moment::Table& table, int row) {
    if constexpr (Moment::kOctave) {
      return octave_decoder(table, row);
    } else {
      return Moment::decoder(table, row);
    }
  }
  __device__ Encoding encoder(const Range& range) const {
    if constexpr (Moment1::kOctave && Moment2::kOctave) {
      const OctaveTables& tables = is_m() ? static_cast<const OctaveTables&>(tables_.first)
                                          : static_cast<const OctaveTables&>(tables_.second);
      return octave_encoder(tables, range, is_m());
    } else {
      return is_m() ? encoder<Moment1>(tables_.first, launch_.store1, range)
                    : encoder<Moment2>(tables_.second, launch_.store2, range);
    }
  }
  template <typename Moment>
  static __device__ Encoding encoder(const typename Moment::Table& table, const MomentStore& store,
                                     const Range& range) {
    if constexpr (Moment::kOctave) {
      return octave_encoder(table, range, is_m());
    } else {
      return Moment::encoder(table, store, range);
    }
  }

  __device__ void decode_v(const uint4& decoder, Quad (&v)[kLaneQuads]) const {
    const Bytes codes = bytes_of(stage_.v, lane());
    std::uint32_t zeros = 0;
#pragma unroll
    for (int q = 0; q < kLaneQuads; ++q) {
      v[q] = Moment2::decode(tables_.second, decoder, codes.quad[q]);
      zeros |=
          (codes.quad[q] - 0x01010101u) & ~codes.quad[q];  // the sign bit of a byte, and others, of a zero
    }
    if constexpr (!Moment2::kDecodesZero) {
      if ((zeros & 0x80808080u) == 0) return;
#pragma unroll
      for (int q = 0; q < kLaneQuads; ++q) {
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          if ((codes.quad[q] >> (8 * i) & 0xFFu) == 0) v[q].x[i] = 0.0f;
        }
      }
    }
  }

  // New moments from what the old ones' codes stand for.
  __device__ void add_gradient(const Quad& gradient, float m_scale, float v_scale, Quad& m, Quad& v) const {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float h = gradient_factor_ * gradient.x[i];
      m.x[i] = __fmaf_rn(m.x[i], m_scale, h);
      v.x[i] = __fmaf_rn(v.x[i], v_scale, launch_.scalars.square * h * h);
    }
  }

  // Of the group's m in even lanes, of its v in odd ones, zeros too. v has no sign: beta2 v + ... of what is
  // not negative.
  static __device__ Range range_of(const Quad (&m)[kLaneQuads], const Quad (&v)[kLaneQuads]) {
    float largest = fabsf(m[0].x[0]), smallest = largest;
    Range second{__float_as_uint(v[0].x[0]), __float_as_uint(v[0].x[0])};
#pragma unroll
    for (int i = 1; i < kLaneElements; ++i) {
      const float first = fabsf(m[i / kQuad].x[i % kQuad]);
      const std::uint32_t bits = __float_as_uint(v[i / kQuad].x[i % kQuad]);
      largest = larger_or_nan(largest, first);
      smallest = fminf(smallest, first);
      second.largest = max(second.largest, bits);
      second.smallest = min(second.smallest, bits);
    }
    return group_range({__float_as_uint(largest), __float_as_uint(smallest)}, second);
  }
  static __device__ float larger_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
  static __device__ Range group_range(const Range& m, const Range& v) {
    const bool keeps_m = is_m();
    const Range given{keeps_m ? v.largest : m.largest, keeps_m ? v.smallest : m.smallest};
    Range kept{keeps_m ? m.largest : v.largest, keeps_m ? m.smallest : v.smallest};
    kept = joined(kept, from(given, 1));
#pragma unroll
    for (int other = 2; other < kGroupLanes; other *= 2) kept = joined(kept, from(kept, other));
    return kept;
  }
  static __device__ Range from(const Range& range, int other) {
    return {__shfl_xor_sync(kWholeWarp, range.largest, other),
            __shfl_xor_sync(kWholeWarp, range.smallest, other)};
  }
  static __device__ Range joined(const Range& a, const Range& b) {
    return {max(a.largest, b.largest), min(a.smallest, b.smallest)};
  }

  // The range with the smallest of what is not zero; leaves no -0 in m and no 0 in v.
  static __device__ Range range_without_zeros(const Range& range, Quad (&m)[kLaneQuads],
                                              Quad (&v)[kLaneQuads]) {
    std::uint32_t smallest1 = kNoMagnitude, smallest2 = kNoMagnitude;
#pragma unroll
    for (int q = 0; q < kLaneQuads; ++q) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const std::uint32_t first = magnitude_bits(m[q].x[i]), second = __float_as_uint(v[q].x[i]);
        smallest1 = min(smallest1, first == 0 ? kNoMagnitude : first);
        smallest2 = min(smallest2, second == 0 ? kNoMagnitude : second);
        m[q].x[i] += 0.0f;
        v[q].x[i] = fmaxf(v[q].x[i], kAlmostZero);
      }
    }
    return {range.largest, group_range({0, smallest1}, {0, smallest2}).smallest};
  }

  // Stores amax and row of all groups, unless one of them does not suit this code: false.
  __device__ bool make_encoders(const TensorEntry& t, std::uint32_t tile, const Range& range,
                                bool values_fit) {
    const Encoding encoding = encoder(range);
    const bool inside = range.smallest >= __float_as_uint(kSmallest) &&
                        range.largest <= __float_as_uint(is_m() ? kLargestM : kLargestV);
    const bool suits = range.largest == 0 || (inside && encoding.fits);
    if (!__all_sync(kWholeWarp, suits && values_fit)) return false;
    if (lane() % kGroupLanes < 2) {
      exchange_.encoders[lane() / kGroupLanes][lane() % 2] = encoding.words;
      const GroupData& data = t.moments[lane() % 2];
      global_at<float>(data.amax, group_of(tile)) = __uint_as_float(range.largest);
      global_at<std::uint8_t>(data.row, group_of(tile)) = static_cast<std::uint8_t>(encoding.row);
    }
    __syncwarp();
    return true;
  }

  // Where the tile's elements go.
  struct Target {
    void* value;
    void* residual;
    void* m;
    void* v;
    std::uint32_t tile;
    std::uint64_t block;  // the first of the lane's random numbers
    std::uint32_t id;
    float keep;
  };

  __device__ void finish(const Target& to, int slot, const Quad (&m)[kLaneQuads],
                         const Quad (&v)[kLaneQuads]) {
    const auto [encoder1, encoder2] = encoders();
    Bytes m_codes, v_codes, residuals;
    if constexpr (kResiduals) residuals = bytes_of(stage_.residual[slot], lane());
#pragma unroll
    for (int run = 0; run < kLaneBlocks; ++run) {
      const PhiloxStream random{launch_.scalars.seed, launch_.scalars.step, to.id};
      const PhiloxBlock block =
          random_block(random.counter(to.block + static_cast<unsigned>(run)), launch_.scalars);
      std::uint32_t halves[kQuad];  // BF16 values of the run
      const auto finish_quad = [&]<int kHalf>() {
        const int q = 2 * run + kHalf;
        Quad value = quad_of(stage_.value[slot], lane(), q);
        if constexpr (kResiduals) value = joined_weights(value, residuals.quad[q]);
        take_step(to.keep, m[q], v[q], value);
        if constexpr (kWeights == WeightFormat::kFp32) {
          stage_.value[slot].set(lane(), q,
                                 make_uint4(__float_as_uint(value.x[0]), __float_as_uint(value.x[1]),
                                            __float_as_uint(value.x[2]), __float_as_uint(value.x[3])));
        } else {
          uint2 rounded;
          if constexpr (kResiduals) {
            const SplitQuad split = split_weights(value);
            rounded = split.halves;
            residuals.quad[q] = split.residuals;
          } else {
            rounded = rounded_halves<kHalf>(value, block);
          }
          halves[2 * kHalf] = rounded.x;
          halves[2 * kHalf + 1] = rounded.y;
        }
        m_codes.quad[q] = Moment1::template encode<kHalf>(tables_.first, encoder1, m[q], block);
        v_codes.quad[q] = Moment2::template encode<kHalf>(tables_.second, encoder2, v[q], block);
      };
      finish_quad.template operator()<0>();
      finish_quad.template operator()<1>();
      if constexpr (kWeights != WeightFormat::kFp32) {
        stage_.value[slot].set(lane(), run, make_uint4(halves[0], halves[1], halves[2], halves[3]));
      }
    }
    store_bytes(to.m, to.tile, m_codes);
    store_bytes(to.v, to.tile, v_codes);
    if constexpr (kResiduals) store_bytes(to.residual, to.tile, residuals);
    __syncwarp();
    stage_.value[slot].store(to.value, to.tile, lane());
  }
  struct Encoders {
    uint4 first, second;
  };
  __device__ Encoders encoders() const {
    const auto& [first, second] = exchange_.encoders[lane() / kGroupLanes];
    return {first, second};
  }

  static __device__ void store_bytes(void* to, std::uint32_t tile, const Bytes& codes) {
    global_at<uint4>(to, tile * unsigned{kWarp} + static_cast<unsigned>(lane())) =
        make_uint4(codes.quad[0], codes.quad[1], codes.quad[2], codes.quad[3]);
  }

  __device__ void take_step(float keep, const Quad& m, const Quad& v, Quad& value) const {
    const StepScalars& s = launch_.scalars;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float inverse = reciprocal_of(__fmaf_rn(root_of(v.x[i]), s.inverse_step, s.eps));
      value.x[i] = __fmaf_rn(-m.x[i], inverse, keep * value.x[i]);
    }
  }

  const Shared& tables_;
  Stage<kWeights, kGradient>& stage_;
  Exchange& exchange_;
  const AdamWLaunch& launch_;
  float gradient_factor_;
  float amax1_ = 0, amax2_ = 0;  // of the lane's group in the tile that is fetched, of m and v
  int row1_ = 0, row2_ = 0;
  int slot_ = 0;  // of that tile
};

}  // namespace coat::kernels::cuda::adamw_fast
