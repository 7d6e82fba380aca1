#include "worker/core/kernels/cpu/moment_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

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
  for (std::int64_t i = 0; i < n; ++i) ratio[i] = std::fabs(in[i]) / amax;
}

// Zero has no sign; another value never becomes zero.
Code with_sign(std::int32_t magnitude, float value) {
  const std::int32_t sign = (std::bit_cast<std::int32_t>(value) >> 24) & 0x80;
  const std::int32_t kept = value != 0.0f ? std::max(magnitude, 1) | sign : 0;
  return static_cast<Code>(kept);
}

void encode_nearest(const float* __restrict in, const float* __restrict ratio,
                    const float* __restrict boundaries, std::int64_t n, Code* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = with_sign(nearest_expanded_code(boundaries, ratio[i]), in[i]);
}

void encode_stochastic(const float* __restrict in, const float* __restrict ratio,
                       const float* __restrict values, const float* __restrict uniform, std::int64_t n,
                       Code* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = with_sign(stochastic_expanded_code(values, ratio[i], uniform[i]), in[i]);
  }
}

// Blocks whose rounds run side by side.
constexpr std::size_t kBatch = 32;

void fill_batch(const PhiloxStream& random, std::uint64_t first_block, float* __restrict out) {
  std::uint32_t c0[kBatch], c1[kBatch], c2[kBatch], c3[kBatch];
  for (std::size_t i = 0; i < kBatch; ++i) {
    const PhiloxBlock counter = random.counter(first_block + i);
    c0[i] = counter.word[0], c1[i] = counter.word[1], c2[i] = counter.word[2], c3[i] = counter.word[3];
  }
  PhiloxKey key = random.key();
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (std::size_t i = 0; i < kBatch; ++i) philox_round(c0[i], c1[i], c2[i], c3[i], key);
    key = philox_next_key(key);
  }
  for (std::size_t i = 0; i < kBatch; ++i) {
    out[4 * i] = philox_uniform(c0[i]);
    out[4 * i + 1] = philox_uniform(c1[i]);
    out[4 * i + 2] = philox_uniform(c2[i]);
    out[4 * i + 3] = philox_uniform(c3[i]);
  }
}

}  // namespace

const float* fill_uniforms(const PhiloxStream& random, std::int64_t first, std::int64_t n,
                           std::vector<float>& out) {
  constexpr std::int64_t kNumbers = 4 * kBatch;
  const std::int64_t skipped = first % 4;
  const std::int64_t batches = (skipped + n + kNumbers - 1) / kNumbers;
  out.resize(std::max(out.size(), static_cast<std::size_t>(batches * kNumbers)));
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    fill_batch(random, static_cast<std::uint64_t>(first / 4) + static_cast<std::uint64_t>(batch) * kBatch,
               out.data() + batch * kNumbers);
  }
  return out.data() + skipped;
}

void MomentCodec::load_group(std::int64_t first, std::int64_t n, float* __restrict out) const {
  const std::int64_t group = first / format_.group;
  const float amax = amax_[group];
  const float* __restrict values = ExpansionTable::instance().values(k16_[group]);
  const Code* __restrict codes = static_cast<const Code*>(stored_) + first;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t code = codes[i];
    const auto magnitude = std::bit_cast<std::uint32_t>(amax * values[code & 0x7F]);
    out[i] = std::bit_cast<float>(magnitude | (static_cast<std::uint32_t>(code & 0x80) << 24));
  }
}

void MomentCodec::load(std::int64_t first, std::int64_t n, float* out) const {
  if (format_.format == Format::kFp32) {
    std::memcpy(out, static_cast<const float*>(stored_) + first, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  for (std::int64_t done = 0; done < n; done += format_.group) {
    load_group(first + done, std::min<std::int64_t>(format_.group, n - done), out + done);
  }
}

void MomentCodec::store_group(std::int64_t first, std::int64_t n, const float* in, const float* uniform,
                              float* ratio) const {
  const std::int64_t group = first / format_.group;
  Code* codes = static_cast<Code*>(stored_) + first;
  const Magnitudes magnitudes = find_magnitudes(in, n);
  amax_[group] = magnitudes.largest;
  if (magnitudes.largest == 0.0f) {
    k16_[group] = static_cast<std::uint8_t>(kMaxK16);
    std::fill_n(codes, n, Code{0});
    return;
  }
  const int k16 = range_.k16(magnitudes.largest, magnitudes.smallest);
  k16_[group] = static_cast<std::uint8_t>(k16);
  find_ratios(in, n, magnitudes.largest, ratio);
  const ExpansionTable& table = ExpansionTable::instance();
  if (uniform == nullptr) {
    encode_nearest(in, ratio, table.boundaries(k16), n, codes);
  } else {
    encode_stochastic(in, ratio, table.values(k16), uniform, n, codes);
  }
}

void MomentCodec::store(std::int64_t first, std::int64_t n, const float* in, const PhiloxStream& random,
                        std::int64_t random_offset, std::vector<float>& scratch) const {
  if (format_.format == Format::kFp32) {
    std::memcpy(static_cast<float*>(stored_) + first, in, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  std::vector<float> ratio(static_cast<std::size_t>(format_.group));
  const float* uniform = nullptr;
  if (format_.rounding == Rounding::kStochastic)
    uniform = fill_uniforms(random, first + random_offset, n, scratch);
  for (std::int64_t done = 0; done < n; done += format_.group) {
    store_group(first + done, std::min<std::int64_t>(format_.group, n - done), in + done,
                uniform == nullptr ? nullptr : uniform + done, ratio.data());
  }
}

void MomentCodec::measure(std::int64_t first, std::int64_t n, const float* in, ErrorSums* sums,
                          std::vector<float>& scratch) const {
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(n)));
  load(first, n, scratch.data());
  for (std::int64_t i = 0; i < n; ++i) {
    const double reference = in[i];
    const double stored = scratch[static_cast<std::size_t>(i)];
    sums->error_squared += (stored - reference) * (stored - reference);
    sums->reference_squared += reference * reference;
    sums->underflowed += reference != 0.0 && stored == 0.0 ? 1.0 : 0.0;
  }
  sums->elements += static_cast<double>(n);
  if (format_.format == Format::kFp32) return;
  for (std::int64_t group = first / format_.group; group * format_.group < first + n; ++group) {
    sums->k_sum += static_cast<double>(k16_[group]) / 16.0;
    sums->k_groups += 1.0;
  }
}

}  // namespace coat::kernels::cpu
