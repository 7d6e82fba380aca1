#include "worker/core/kernels/cpu/moment_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/core/quant/bf16.h"

namespace coat::kernels::cpu {
namespace {

using Code = std::uint8_t;

struct Magnitudes {
  float largest = 0;
  float smallest = 0;  // of those that are not zero
};

Magnitudes find_magnitudes(const float* __restrict in, std::int64_t n) {
  std::int32_t largest = 0, smallest = std::numeric_limits<std::int32_t>::max();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(in[i]) & 0x7FFFFFFF;
    largest = std::max(largest, bits);
    smallest = std::min(smallest, bits == 0 ? std::numeric_limits<std::int32_t>::max() : bits);
  }
  return {std::bit_cast<float>(largest), std::bit_cast<float>(smallest)};
}

void find_ratios(const float* __restrict in, std::int64_t n, float amax, float* __restrict ratio) {
  const RatioScale scale = ratio_scale(amax);
  for (std::int64_t i = 0; i < n; ++i) ratio[i] = ratio_of(std::fabs(in[i]), scale);
}

// Zero has no sign; another value has code `smallest` at least.
template <bool kSigned>
Code finished(std::int32_t magnitude, float value, std::int32_t smallest) {
  const std::int32_t kept = value != 0.0f ? std::max(magnitude, smallest) : 0;
  const std::int32_t sign = (std::bit_cast<std::int32_t>(value) >> 24) & 0x80;
  return static_cast<Code>(kSigned && kept != 0 ? kept | sign : kept);
}

template <bool kSigned>
constexpr int kBits = kSigned ? 7 : 8;

template <bool kSigned>
void encode_nearest(const float* __restrict in, const float* __restrict ratio,
                    const float* __restrict boundaries, std::int32_t smallest, std::int64_t n,
                    Code* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = finished<kSigned>(nearest_code<kBits<kSigned>>(boundaries, ratio[i]), in[i], smallest);
  }
}

struct StochasticRow {
  const float* values;
  std::int32_t last, smallest;
};

template <bool kSigned>
void encode_stochastic(const float* __restrict in, const float* __restrict ratio, const StochasticRow& row,
                       const std::uint32_t* __restrict random, std::int64_t n, Code* __restrict out) {
  const float* __restrict values = row.values;
  for (std::int64_t i = 0; i < n; ++i) {
    const float uniform = rounding_uniform(random[i]);
    out[i] = finished<kSigned>(stochastic_code<kBits<kSigned>>(values, row.last, ratio[i], uniform), in[i],
                               row.smallest);
  }
}

// `random` is nullptr for rounding to nearest.
template <bool kSigned>
void encode_octaves(const float* __restrict in, float amax, int row, const std::uint32_t* __restrict random,
                    std::int64_t n, Code* __restrict out) {
  constexpr int kTop = kSigned ? 127 : 255;
  const int codes = octave_row_used(kTop, row);
  const OctaveTail tail = octave_tail(kTop, codes);
  const RatioScale scale = ratio_scale(amax);
  const float slope = octave_slope(scale.inverse, tail.rest);
  for (std::int64_t i = 0; i < n; ++i) {
    const float line = std::fma(std::fabs(in[i]) * scale.up, slope, tail.start);
    const float y = line < 1.0f ? line : 1.0f;
    const std::int32_t code = random == nullptr ? nearest_octave_code(kTop, codes, y)
                                                : stochastic_octave_code(kTop, codes, y, random[i]);
    out[i] = finished<kSigned>(code, in[i], 1);
  }
}

template <bool kSigned>
void decode(const Code* __restrict codes, const float* __restrict values, float amax, std::int64_t n,
            float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t code = codes[i];
    if constexpr (kSigned) {
      const auto magnitude = std::bit_cast<std::uint32_t>(amax * values[code & 0x7F]);
      out[i] = std::bit_cast<float>(magnitude | (static_cast<std::uint32_t>(code & 0x80) << 24));
    } else {
      out[i] = amax * values[code];
    }
  }
}

// The bits of the elements of kBlocks blocks, whose rounds run side by side.
constexpr std::size_t kBlocks = 32, kElements = kBlocks * RoundingPlace::kElements;
void fill_blocks(const PhiloxStream& random, std::uint64_t first_block, std::uint32_t* __restrict out) {
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const PhiloxBlock counter = random.counter(first_block + i);
    c0[i] = counter.word[0], c1[i] = counter.word[1], c2[i] = counter.word[2], c3[i] = counter.word[3];
  }
  PhiloxKey key = random.key();
  for (int round = 0; round < kRoundingRounds; ++round) {
    for (std::size_t i = 0; i < kBlocks; ++i) philox_round(c0[i], c1[i], c2[i], c3[i], key);
    key = philox_next_key(key);
  }
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const std::uint32_t words[] = {c0[i], c1[i], c2[i], c3[i]};
    for (std::size_t word = 0; word < 4; ++word) {
      out[8 * i + word] = rounding_half(words[word], 0);
      out[8 * i + 4 + word] = rounding_half(words[word], 1);
    }
  }
}

}  // namespace

const std::uint32_t* fill_rounding_bits(const PhiloxStream& random, std::int64_t first, std::int64_t n,
                                        std::vector<std::uint32_t>& out) {
  const std::uint64_t block = static_cast<std::uint64_t>(first) / RoundingPlace::kElements;
  const auto skipped = static_cast<std::size_t>(first) % RoundingPlace::kElements;
  const std::size_t times = (skipped + static_cast<std::size_t>(n) + kElements - 1) / kElements;
  out.resize(std::max(out.size(), times * kElements));
  for (std::size_t i = 0; i < times; ++i) {
    fill_blocks(random, block + i * kBlocks, out.data() + i * kElements);
  }
  return out.data() + skipped;
}

MomentCodec::MomentCodec(const MomentFormat& format, MomentUse use) : format_(format) {
  require_usable(format, use);
  if (!format.is_quantized()) return;
  table_ = &MomentTable::of(format.code);
  choice_.emplace(format);
}

float MomentCodec::amax(const MomentData& data, std::int64_t group) const {
  if (format_.amax_format == Format::kFp32) return static_cast<const float*>(data.amax)[group];
  return decode_bf16(static_cast<const std::uint16_t*>(data.amax)[group]);
}

void MomentCodec::load_group(const MomentData& data, std::int64_t first, std::int64_t n, const float* values,
                             float amax, float* out) const {
  const Code* codes = static_cast<const Code*>(data.data) + first;
  if (is_signed(format_.code)) return decode<true>(codes, values, amax, n, out);
  decode<false>(codes, values, amax, n, out);
}

void MomentCodec::load(const MomentData& data, std::int64_t first, std::int64_t n, float* out) const {
  if (table_ == nullptr) {
    std::memcpy(out, static_cast<const float*>(data.data) + first,
                static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  for (std::int64_t done = 0; done < n; done += format_.group) {
    const std::int64_t part = std::min<std::int64_t>(format_.group, n - done);
    const std::int64_t group = (first + done) / format_.group;
    load_group(data, first + done, part, table_->values(row(data, group)), amax(data, group), out + done);
  }
}

void MomentCodec::load_relative(const MomentData& data, std::int64_t first, std::int64_t n, float factor,
                                float* relative, float* scale) const {
  if (table_ == nullptr) {
    load(data, first, n, relative);
    std::fill_n(scale, n, factor);
    return;
  }
  for (std::int64_t done = 0; done < n; done += format_.group) {
    const std::int64_t part = std::min<std::int64_t>(format_.group, n - done);
    const std::int64_t group = (first + done) / format_.group;
    const int stored_row = row(data, group);
    load_group(data, first + done, part, table_->unstretched(stored_row), 1.0f, relative + done);
    std::fill_n(scale + done, part, factor * amax(data, group) * table_->stretch(stored_row));
  }
}

template <bool kSigned>
void MomentCodec::encode(int row, float amax, std::int64_t n, const float* in, const std::uint32_t* random,
                         float* ratio, Code* codes) const {
  if (is_octave(format_.code)) {
    return encode_octaves<kSigned>(in, amax, row, is_stochastic() ? random : nullptr, n, codes);
  }
  const float* values = table_->values(row);
  const std::int32_t smallest = format_.expand ? smallest_code(values, amax) : 0;
  find_ratios(in, n, amax, ratio);
  if (!is_stochastic()) {
    return encode_nearest<kSigned>(in, ratio, table_->boundaries(row), smallest, n, codes);
  }
  const StochasticRow to{values, table_->count() - 1, smallest};
  encode_stochastic<kSigned>(in, ratio, to, random, n, codes);
}

void MomentCodec::store_group(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
                              const std::uint32_t* random, float* ratio) const {
  const std::int64_t group = first / format_.group;
  Code* codes = static_cast<Code*>(data.data) + first;
  const Magnitudes magnitudes = find_magnitudes(in, n);
  const bool bf16 = format_.amax_format == Format::kBf16;
  const float amax = stored_amax(magnitudes.largest, bf16);
  const bool zeros = amax == 0.0f;
  const int row = zeros ? kLastRow : choice_->row(amax, magnitudes.smallest);
  if (bf16) {
    static_cast<std::uint16_t*>(data.amax)[group] = encode_bf16(amax);
  } else {
    static_cast<float*>(data.amax)[group] = amax;
  }
  if (format_.expand) data.row[group] = static_cast<std::uint8_t>(row);
  if (zeros) {
    std::fill_n(codes, n, Code{0});
  } else if (is_signed(format_.code)) {
    encode<true>(row, amax, n, in, random, ratio, codes);
  } else {
    encode<false>(row, amax, n, in, random, ratio, codes);
  }
}

void MomentCodec::store(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
                        const std::uint32_t* random, std::vector<float>& ratio) const {
  if (table_ == nullptr) {
    std::memcpy(static_cast<float*>(data.data) + first, in, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  ratio.resize(std::max(ratio.size(), static_cast<std::size_t>(format_.group)));
  for (std::int64_t done = 0; done < n; done += format_.group) {
    store_group(data, first + done, std::min<std::int64_t>(format_.group, n - done), in + done,
                random == nullptr ? nullptr : random + done, ratio.data());
  }
}

void MomentCodec::measure(const MomentData& data, std::int64_t first, std::int64_t n, const float* in,
                          const float* stored, ErrorSums* sums) const {
  for (std::int64_t i = 0; i < n; ++i) {
    const double reference = in[i], kept = stored[i];
    sums->error_squared += (kept - reference) * (kept - reference);
    sums->reference_squared += reference * reference;
    sums->underflowed += reference != 0.0 && kept == 0.0 ? 1.0 : 0.0;
  }
  sums->elements += static_cast<double>(n);
  if (table_ == nullptr) return;
  for (std::int64_t i = 0; i < n; ++i) {
    sums->saturated += std::fabs(in[i]) > amax(data, (first + i) / format_.group) ? 1.0 : 0.0;
  }
  if (!format_.expand) return;
  for (std::int64_t group = first / format_.group; group * format_.group < first + n; ++group) {
    const double k = table_->exponent(data.row[group]);
    sums->k_sum += k;
    sums->k_groups += 1.0;
    sums->k_histogram[exponent_bucket(k)] += 1.0;
  }
}

}  // namespace coat::kernels::cpu
