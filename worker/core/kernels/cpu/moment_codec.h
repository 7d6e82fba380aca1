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

  // `words`: one of PhiloxStream for each element, used where the moment rounds stochastically. `ratio`:
  // memory for a group.
  void store(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
             const std::uint32_t* words, std::vector<float>& ratio) const;

  // *sums += the span's error, where `stored` is what load() returns now and `in` is what was stored.
  void measure(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
               const float* stored, ErrorSums* sums) const;

  bool is_stochastic() const { return format_.is_quantized() && format_.rounding == Rounding::kStochastic; }

 private:
  float amax(const MomentData& data, std::int64_t group) const;
  int row(const MomentData& data, std::int64_t group) const {
    return format_.expand ? data.row[group] : kPlainRow;
  }
  void load_group(const MomentData& data, std::int64_t first, std::int64_t n, float* out) const;
  void store_group(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
                   const std::uint32_t* words, float* ratio) const;
  template <bool kSigned>
  void encode(int row, float amax, std::int64_t n, const float* in, const std::uint32_t* words, float* ratio,
              std::uint8_t* codes) const;

  MomentFormat format_;
  RoundingUse rounding_use_;
  const MomentTable* table_ = nullptr;  // nullptr: FP32
  std::optional<RowChoice> choice_;
};

// out[i] = random.word(first + i). `out` has room for n + 6; the words start at the returned pointer.
const std::uint32_t* fill_words(const PhiloxStream& random, std::int64_t first, std::int64_t n,
                                std::vector<std::uint32_t>& out);

}  // namespace coat::kernels::cpu
