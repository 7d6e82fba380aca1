// Between an optimizer moment as it is stored and FP32 buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/core/kernels/api/kernels.h"
#include "worker/core/quant/expansion.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::cpu {

// One moment of one tensor. Spans start at a group's border and end at one or at the tensor's end.
class MomentCodec {
 public:
  // `stored`, `amax` and `k16` are those of AdamWTensor; the last two are unused by FP32.
  MomentCodec(const MomentFormat& format, const ExpansionRange& range, void* stored, float* amax,
              std::uint8_t* k16)
      : format_(format), range_(range), stored_(stored), amax_(amax), k16_(k16) {}

  void load(std::int64_t first, std::int64_t n, float* out) const;

  // `random` keys the stochastic rounding, `random_offset` is added to an element's index there; `scratch` is
  // reused memory.
  void store(std::int64_t first, std::int64_t n, const float* in, const PhiloxStream& random,
             std::int64_t random_offset, std::vector<float>& scratch) const;

  // *sums += error of the stored span against what it was made from.
  void measure(std::int64_t first, std::int64_t n, const float* in, ErrorSums* sums,
               std::vector<float>& scratch) const;

 private:
  void load_group(std::int64_t first, std::int64_t n, float* out) const;
  // `uniform`: one number an element, nullptr for rounding to nearest.
  void store_group(std::int64_t first, std::int64_t n, const float* in, const float* uniform,
                   float* ratio) const;

  const MomentFormat& format_;
  const ExpansionRange& range_;
  void* stored_;
  float* amax_;
  std::uint8_t* k16_;
};

// out[i] = random.uniform(first + i). `out` has room for n + 6; the numbers start at the returned pointer.
const float* fill_uniforms(const PhiloxStream& random, std::int64_t first, std::int64_t n,
                           std::vector<float>& out);

}  // namespace coat::kernels::cpu
