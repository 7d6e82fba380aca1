// Scales: their formats, their two rules, and what they cost; and rounding that is stochastic.
#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/bf16.h"
#include "worker/core/quant/fp8.h"
#include "worker/core/quant/scale.h"

namespace coat::kernels::test {
namespace {

TensorFormat with_scale(TensorFormat format, ScaleFormat scale_format) {
  format.scale_format = scale_format;
  return format;
}

TensorFormat with_rule(TensorFormat format, const ScaleRule& rule) {
  format.rule = rule;
  return format;
}

TEST(ScaleFormatTest, E8M0IsTheNextPowerOfTwo) {
  for (int exponent = -126; exponent <= 126; ++exponent) {
    for (const double fraction : {1.0, 1.0 + 0x1p-23, 1.5, 2.0 - 0x1p-23}) {
      const auto scale = static_cast<float>(std::ldexp(fraction, exponent));
      const double stored = decode_e8m0(encode_e8m0(scale));
      ASSERT_EQ(stored, std::ldexp(1.0, exponent + (fraction > 1 ? 1 : 0))) << scale;
    }
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(encode_e8m0(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(decode_e8m0(encode_e8m0(std::numeric_limits<float>::infinity()))));
  EXPECT_EQ(decode_e8m0(0), 0x1p-127f);
}

TEST(ScaleFormatTest, Bf16UpIsTheNextBf16) {
  for (std::uint32_t upper = 0x0080; upper < 0x7F7F; ++upper) {
    const float below = decode_bf16(static_cast<std::uint16_t>(upper));
    const float above = decode_bf16(static_cast<std::uint16_t>(upper + 1));
    ASSERT_EQ(stored_scale(below, ScaleFormat::kBf16Up), below);
    ASSERT_EQ(stored_scale(std::nextafter(below, above), ScaleFormat::kBf16Up), above);
    ASSERT_EQ(stored_scale(std::nextafter(above, below), ScaleFormat::kBf16Up), above);
  }
  EXPECT_TRUE(std::isnan(stored_scale(std::bit_cast<float>(0x7FFFFFFFu), ScaleFormat::kBf16Up)));
  EXPECT_TRUE(std::isinf(stored_scale(std::numeric_limits<float>::infinity(), ScaleFormat::kBf16Up)));
}

// Fact 23: rounding a scale down leaves the largest value below where FP8 ends, and rounding it up leaves it
// below the largest code. Every mantissa of amax that FP32 has.
TEST(ScaleFormatTest, NoScaleBringsAValueBeyondTheFormat) {
  for (const auto& [format, end] : {std::pair{Format::kE4M3, 464.0f}, {Format::kE5M2, 61440.0f}}) {
    for (std::uint32_t mantissa = 0; mantissa < (1u << 23); mantissa += 97) {
      const float amax = std::bit_cast<float>(0x3F800000u | mantissa);
      const float scale = scale_from_amax(amax, max_value(format));
      ASSERT_LT(amax / stored_scale(scale, ScaleFormat::kBf16), end);
      ASSERT_LE(amax / stored_scale(scale, ScaleFormat::kBf16Up), max_value(format));
      ASSERT_LE(amax / stored_scale(scale, ScaleFormat::kE8M0), max_value(format));
      ASSERT_GT(amax / stored_scale(scale, ScaleFormat::kE8M0), max_value(format) / 2 * 0.999f);
    }
  }
}

// COAT.md 1.4: 1e-10 is added; groups make codes with the FP32 scale and store it in BF16; a tensor makes
// them with the BF16 scale.
TEST(ReferenceRuleTest, FollowsItsDefinition) {
  const std::vector<float> values = normal_values(40 * 48, 3, 1e-9);
  const TensorFormat group = with_rule(kE4M3Group16, kReferenceGroupRule);
  const OwnedMatrix grouped = make_matrix(values, group, 40, 48);
  for (std::size_t first = 0; first < values.size(); first += 16) {
    float amax = 0;
    for (std::size_t i = first; i < first + 16; ++i) amax = std::max(amax, std::fabs(values[i]));
    const float scale = (amax + 1e-10f) / 448.0f;
    const auto row = static_cast<std::int64_t>(first) / 48, col = static_cast<std::int64_t>(first) % 48;
    ASSERT_EQ(scale_of(grouped.view(), row, col), double{round_bf16(scale)});
    for (std::size_t i = first; i < first + 16; ++i)
      ASSERT_EQ(grouped.data()[i], encode_e4m3(values[i] * (1.0f / scale)));
  }
  const TensorFormat tensor = with_rule(with_scale(kE5M2Tensor, ScaleFormat::kBf16), kReferenceTensorRule);
  const OwnedMatrix whole = make_matrix(values, tensor, 40, 48);
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  const float scale = round_bf16((amax + 1e-10f) / 57344.0f);
  ASSERT_EQ(scale_of(whole.view(), 0, 0), double{scale});
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(whole.data()[i], encode_e5m2(values[i] * (1.0f / scale)));
}

// Fact 33: what the added 1e-10 flushes, and a floor by maximum does not.
TEST(ReferenceRuleTest, FlushesWhatOursKeeps) {
  const std::vector<float> values = normal_values(64 * 16, 4, 1e-17);
  const OwnedMatrix reference = make_matrix(values, with_rule(kE4M3Group16, kReferenceGroupRule), 64, 16);
  const OwnedMatrix ours = make_matrix(values, kE4M3Group16, 64, 16);
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(reference.data()[i] & 0x7F, 0);
    kept += (ours.data()[i] & 0x7F) != 0;
  }
  EXPECT_GT(kept, 1000);
}

TEST(ReferenceRuleTest, OnlyGroupsCanMakeCodesWithAnUnroundedScale) {
  const OwnedMatrix in = make_matrix(std::vector<float>(32), kFp32, 2, 16);
  for (const TensorFormat& format : {kE4M3Tensor, kE4M3Row, kE4M3Block128}) {
    OwnedMatrix out(with_rule(format, kReferenceGroupRule), 2, 16);
    EXPECT_THROW(cpu_kernels().quantize({.in = in.view(), .out = out.view()}, {}), std::logic_error);
  }
}

double signal_to_noise(const std::vector<float>& values, const TensorFormat& format) {
  const OwnedMatrix in = make_matrix(values, kFp32, 512, 1024), out = make_matrix(values, format, 512, 1024);
  ErrorSums sums;
  cpu_kernels().quantization_error(in.view(), out.view(), &sums, {});
  return 10 * std::log10(sums.reference_squared / sums.error_squared);
}

// Fact 23, with one value in a thousand 30 times as large.
TEST(SignalToNoiseTest, OfGaussianDataWithOutliers) {
  std::vector<float> values = normal_values(512 * 1024, 10);
  for (std::size_t i = 0; i < values.size(); i += 1000) values[i] *= 30;
  EXPECT_NEAR(signal_to_noise(values, kE4M3Group16), 35.7, 0.4);
  EXPECT_NEAR(signal_to_noise(values, kE4M3Group128), 34.4, 0.4);
  EXPECT_LT(signal_to_noise(values, kE4M3Tensor), signal_to_noise(values, kE4M3Group128) - 1);
}

TEST(SignalToNoiseTest, OfScaleFormats) {
  const std::vector<float> values = normal_values(512 * 1024, 11);
  const double exact = signal_to_noise(values, with_scale(kE4M3Group16, ScaleFormat::kFp32));
  for (const ScaleFormat format : {ScaleFormat::kBf16, ScaleFormat::kBf16Up}) {
    EXPECT_LT(std::fabs(signal_to_noise(values, with_scale(kE4M3Group16, format)) - exact), 0.1);
  }
  EXPECT_NEAR(signal_to_noise(values, with_scale(kE4M3Group16, ScaleFormat::kE8M0)), 31.6, 0.2);
  EXPECT_NEAR(signal_to_noise(values, kE4M3Row), signal_to_noise(values, kE4M3Tensor), 0.2);
  EXPECT_NEAR(signal_to_noise(values, kE4M3Block128), signal_to_noise(values, kE4M3Tensor), 0.2);
  // Codes on another grid than the one that decoding uses: at most what rounding the scale loses.
  EXPECT_LE(signal_to_noise(values, with_rule(kE4M3Group16, kReferenceGroupRule)),
            signal_to_noise(values, kE4M3Group16));
}

class IdempotenceTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, IdempotenceTest,
                         testing::Values(kE4M3Tensor, kE5M2Tensor, kE4M3Group16, kE5M2Group16, kE4M3Group20,
                                         kE4M3Group32E8M0, kE4M3Group64, kE4M3Group128, kE4M3Row, kE5M2Row,
                                         kE4M3Block128, kE5M2Block128));

// What was decoded is encoded again as the same codes: every finite code, beside the largest one of its
// group.
TEST_P(IdempotenceTest, EveryCodeSurvivesARoundTrip) {
  const TensorFormat format = GetParam();
  const bool e4m3 = format.format == Format::kE4M3;
  const std::uint8_t largest = e4m3 ? 0x7E : 0x7B;
  const std::int64_t group = format.group > 0 ? std::min(format.group, 16) : 16;
  for (const float scale : {1.0f, 0x1p-30f, 0x1p40f}) {
    std::vector<float> values;
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7F) > largest) continue;
      if (static_cast<std::int64_t>(values.size()) % group == 0)
        values.push_back((e4m3 ? decode_e4m3(largest) : decode_e5m2(largest)) * scale);
      const auto byte = static_cast<std::uint8_t>(code);
      values.push_back((e4m3 ? decode_e4m3(byte) : decode_e5m2(byte)) * scale);
    }
    while (static_cast<std::int64_t>(values.size()) % group != 0) values.push_back(448.0f * scale);
    const auto cols = static_cast<std::int64_t>(values.size());
    const OwnedMatrix once = make_matrix(values, format, 1, cols);
    OwnedMatrix decoded_once(kFp32, 1, cols);
    cpu_kernels().dequantize(once.view(), decoded_once.view(), {});
    OwnedMatrix twice(format, 1, cols);
    cpu_kernels().quantize({.in = decoded_once.view(), .out = twice.view()}, {});
    ASSERT_EQ(twice.data(), once.data()) << scale;
    ASSERT_EQ(twice.scale(), once.scale()) << scale;
  }
}

class StochasticTest : public testing::TestWithParam<TensorFormat> {
 protected:
  static OwnedMatrix round(const std::vector<float>& values, const TensorFormat& format, std::int64_t rows,
                           std::int64_t cols, std::uint64_t step) {
    const OwnedMatrix in = make_matrix(values, kFp32, rows, cols);
    OwnedMatrix out(format, rows, cols);
    PhiloxStream random;
    random.seed = 5;
    random.step = step;
    cpu_kernels().quantize(
        {.in = in.view(), .out = out.view(), .rounding = Rounding::kStochastic, .random = random}, {});
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, StochasticTest,
                         testing::Values(kE4M3Tensor, kE5M2Tensor, kE4M3Group16, kE4M3Group20, kE4M3Row,
                                         kE4M3Group32E8M0, kE4M3Block128));

// Both neighbours of a value come up, in such shares that the mean is the value: within 5 standard
// deviations of a mean of n draws that are at most a step apart.
TEST_P(StochasticTest, TheMeanOfManyStepsIsTheValue) {
  const TensorFormat format = GetParam();
  const std::vector<float> values = normal_values(3 * 40, 6, 2.0);
  constexpr int kSteps = 2000;
  std::vector<double> sums(values.size()), lowest(values.size(), 1e30), highest(values.size(), -1e30);
  OwnedMatrix last(format, 3, 40);
  for (int step = 0; step < kSteps; ++step) {
    last = round(values, format, 3, 40, static_cast<std::uint64_t>(step));
    const std::vector<double> decoded_values = decoded(last.view());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += decoded_values[i];
      lowest[i] = std::min(lowest[i], decoded_values[i]);
      highest[i] = std::max(highest[i], decoded_values[i]);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double x = values[i];
    const double scale =
        scale_of(last.view(), static_cast<std::int64_t>(i) / 40, static_cast<std::int64_t>(i) % 40);
    const double largest = scale * double{max_value(format.format)};
    const double clamped = std::clamp(x, -largest, largest);
    const double step = 2 * half_step(format.format, x, scale) * (1 + 1e-6);
    EXPECT_NEAR(sums[i] / kSteps, clamped, 5 * 0.5 * step / std::sqrt(kSteps));
    EXPECT_LE(highest[i] - lowest[i], step);
    // Either neighbour that is due in a hundredth of the draws or more has come: 0.99^2000 is 2e-9.
    EXPECT_LE(lowest[i], clamped + 0.01 * step);
    EXPECT_GE(highest[i], clamped - 0.01 * step);
  }
}

TEST_P(StochasticTest, AStreamGivesItsBitsAgainAndOthersOthers) {
  const std::vector<float> values = normal_values(129 * 300, 7);
  const OwnedMatrix first = round(values, GetParam(), 129, 300, 1);
  EXPECT_EQ(first.data(), round(values, GetParam(), 129, 300, 1).data());
  EXPECT_NE(first.data(), round(values, GetParam(), 129, 300, 2).data());
  EXPECT_EQ(first.scale(), round(values, GetParam(), 129, 300, 2).scale());
}

TEST(StochasticCodesTest, KeepWhatNeedsNoRounding) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    for (const float uniform : {0.0f, 0.5f, 1.0f - 0x1p-24f}) {
      if ((code & 0x7F) <= E4M3Layout::kMaxFiniteCode) {
        EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(decode_e4m3(byte), uniform), byte);
      }
      if ((code & 0x7F) <= E5M2Layout::kMaxFiniteCode) {
        EXPECT_EQ(encode_fp8_stochastic<E5M2Layout>(decode_e5m2(byte), uniform), byte);
      }
    }
  }
  EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(1e9f, 0.0f), 0x7E);
  EXPECT_EQ(encode_fp8_stochastic<E5M2Layout>(-std::numeric_limits<float>::infinity(), 0.0f), 0xFB);
  EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(std::numeric_limits<float>::quiet_NaN(), 0.5f), 0x7F);
}

// p = (x - lo) / (hi - lo), to the last of the 24 bits.
TEST(StochasticCodesTest, RoundUpWithTheExactShare) {
  const float x = 1.0f + 3.0f / 64;  // between 1 and 1.125: 3/8 of the way
  EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(x, 0.375f), encode_e4m3(1.0f));
  EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(x, 0.375f - 0x1p-24f), encode_e4m3(1.125f));
  const float tiny = 0x1p-9f * 2.25f;  // among subnormals
  EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(-tiny, 0.25f), 0x82);
  EXPECT_EQ(encode_fp8_stochastic<E4M3Layout>(-tiny, 0.25f - 0x1p-24f), 0x83);
}

TEST(StochasticCodesTest, TransposedCodesAreTheSameAndOnlyFp8IsRounded) {
  const OwnedMatrix in = make_matrix(normal_values(70 * 129, 8), kFp32, 70, 129);
  OwnedMatrix out(kE4M3Tensor, 70, 129), transposed(kE4M3Tensor, 129, 70), wide(kBf16, 70, 129);
  QuantizeArgs args{.in = in.view(), .out = out.view(), .out_transposed = transposed.view()};
  args.rounding = Rounding::kStochastic;
  cpu_kernels().quantize(args, {});
  for (std::size_t row = 0; row < 70; ++row) {
    for (std::size_t col = 0; col < 129; ++col)
      ASSERT_EQ(transposed.data()[col * 70 + row], out.data()[row * 129 + col]);
  }
  args.out = wide.view();
  args.out_transposed = {};
  EXPECT_THROW(cpu_kernels().quantize(args, {}), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
