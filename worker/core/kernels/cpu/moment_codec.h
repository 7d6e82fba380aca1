// Between an optimizer moment as it is stored and FP32 buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/core/kernels/api/adamw_args.h"
#include "worker/core/quant/moment_table.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::cpu {

// One moment of a step, for all its tensors. Spans start at a group's border and end at one or at the
// tensor's end. Thread-safe.
class MomentCodec {
 public:
  // Throws std::logic_error where the format does not suit the moment.
  MomentCodec(const MomentFormat& format, MomentUse use);

  void load(const MomentData& data, std::int64_t first, std::int64_t n, float* out) const;

  // The same in two factors, both an element: MomentTable::unstretched(), and factor * amax * stretch of the
  // group. FP32 moments are as they are, beside `factor`.
  void load_relative(const MomentData& data, std::int64_t first, std::int64_t n, float factor,
                     float* relative, float* scale) const;

  // `random`: PhiloxStream::rounding_bits() of each element, used where the moment rounds stochastically.
  // `ratio`: memory for a group.
  void store(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
             const std::uint32_t* random, std::vector<float>& ratio) const;

  // *sums += the span's error, where `stored` is what load() returns now and `in` is what was stored.
  void measure(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
               const float* stored, ErrorSums* sums) const;

  bool is_stochastic() const { return format_.is_quantized() && format_.rounding == Rounding::kStochastic; }

 private:
  float amax(const MomentData& data, std::int64_t group) const;
  int row(const MomentData& data, std::int64_t group) const {
    return format_.expand ? data.row[group] : kPlainRow;
  }
  // values: of the group's row.
  void load_group(const MomentData& data, std::int64_t first, std::int64_t n, const float* values, float amax,
                  float* out) const;
  void store_group(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
                   const std::uint32_t* random, float* ratio) const;
  template <bool kSigned>
  void encode(int row, float amax, std::int64_t n, const float* in, const std::uint32_t* random, float* ratio,
              std::uint8_t* codes) const;

  MomentFormat format_;
  const MomentTable* table_ = nullptr;  // nullptr: FP32
  std::optional<RowChoice> choice_;
};

// [i] of what it returns is random.rounding_bits(first + i); `out` holds them.
const std::uint32_t* fill_rounding_bits(const PhiloxStream& random, std::int64_t first, std::int64_t n,
                                        std::vector<std::uint32_t>& out);

}  // namespace coat::kernels::cpu
