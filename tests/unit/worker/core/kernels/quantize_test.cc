#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/bf16.h"
#include "worker/core/quant/fp8.h"

namespace coat::kernels::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1},   {17, 1},   {129, 16},   {1000, 17}, {1, 5120}, {130, 300},  {17, 5120},
                             {3, 129}, {1000, 1}, {129, 1000}, {2, 4097},  {5, 20},   {1, 100'003}};

float amax_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

class QuantizeTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantizeTest,
                         testing::Values(kFp32, kBf16, kE4M3Tensor, kE5M2Tensor, kE4M3Group16, kE5M2Group16,
                                         kE4M3Group20, kE4M3Group128, kE4M3Row, kE5M2Row, kE4M3Group32E8M0,
                                         kE4M3Group64, kE4M3Block128, kE5M2Block128));

// Every value lands on the nearest one of the grid that decoding uses; what the largest one loses to the
// rounding of a BF16 scale is its relative half step, 2^-9.
TEST_P(QuantizeTest, ErrorIsAtMostHalfAStepForEveryShape) {
  const TensorFormat format = GetParam();
  for (const Shape shape : kShapes) {
    const std::vector<float> values = normal_values(shape.rows * shape.cols, 1, 3.0);
    const OwnedMatrix stored = make_matrix(values, format, shape.rows, shape.cols);
    const std::vector<double> back = decoded(stored.view());
    for (std::int64_t i = 0; i < shape.rows * shape.cols; ++i) {
      const double x = values[static_cast<std::size_t>(i)];
      const double scale = scale_of(stored.view(), i / shape.cols, i % shape.cols);
      const double bound =
          std::max(half_step(format.format, x, scale), std::fabs(x) * 0x1p-8 * (scale != 1.0));
      ASSERT_LE(std::fabs(back[static_cast<std::size_t>(i)] - x), bound * (1 + 1e-5))
          << name_of(format.format) << " [" << shape.rows << ", " << shape.cols << "] at " << i << ": " << x;
    }
  }
}

TEST_P(QuantizeTest, DequantizeGivesTheDefinedValues) {
  const TensorFormat format = GetParam();
  for (const Shape shape : kShapes) {
    const OwnedMatrix stored =
        make_matrix(normal_values(shape.rows * shape.cols, 2), format, shape.rows, shape.cols);
    const std::vector<double> expected = decoded(stored.view());
    for (const TensorFormat& target : {kFp32, kBf16}) {
      OwnedMatrix out(target, shape.rows, shape.cols);
      cpu_kernels().dequantize(stored.view(), out.view(), {});
      const std::vector<double> values = decoded(out.view());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto exact = static_cast<float>(expected[i]);
        ASSERT_EQ(values[i], double{target == kBf16 ? round_bf16(exact) : exact});
      }
    }
  }
}

TEST_P(QuantizeTest, AmaxIsTheLargestDecodedMagnitude) {
  for (const Shape shape : kShapes) {
    const OwnedMatrix stored =
        make_matrix(normal_values(shape.rows * shape.cols, 3), GetParam(), shape.rows, shape.cols);
    float expected = 0, found = -1;
    for (const double value : decoded(stored.view())) {
      expected = std::max(expected, std::fabs(static_cast<float>(value)));
    }
    cpu_kernels().amax(stored.view(), &found, {});
    ASSERT_EQ(found, expected) << shape.rows << " " << shape.cols;
  }
}

// COAT.md 5.5 fact 33.
TEST_P(QuantizeTest, ZerosAndPowersOfTwo) {
  const TensorFormat format = GetParam();
  const OwnedMatrix zero = make_matrix(std::vector<float>(33 * 40), format, 33, 40);
  for (const std::uint8_t code : zero.data()) ASSERT_EQ(code, 0);
  EXPECT_TRUE(std::isfinite(scale_of(zero.view(), 0, 0)));
  EXPECT_GT(scale_of(zero.view(), 0, 0), 0);
  if (format.scaling == Scaling::kNone) return;
  std::vector<float> values = normal_values(33 * 40, 4);
  const OwnedMatrix plain = make_matrix(values, format, 33, 40);
  for (float& value : values) value *= 0x1p-50f;
  EXPECT_EQ(make_matrix(values, format, 33, 40).data(), plain.data());
}

TEST_P(QuantizeTest, ConstantsOfOneRoundTrip) {
  const TensorFormat format = GetParam();
  const OwnedMatrix stored = make_matrix(std::vector<float>(5 * 33, -1.0f), format, 5, 33);
  // What rounding the scale to BF16 costs: half a step to nearest, a whole one up.
  const double tolerance = format.scaling == Scaling::kNone              ? 0
                           : format.scale_format == ScaleFormat::kBf16Up ? 0x1p-7
                                                                         : 0x1p-8;
  for (const double value : decoded(stored.view())) ASSERT_NEAR(value, -1.0, tolerance);
}

TEST_P(QuantizeTest, NanAndInfinityStayVisible) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<float> values = normal_values(3 * 40, 5);
    values[57] = bad;
    const OwnedMatrix stored = make_matrix(values, GetParam(), 3, 40);
    EXPECT_FALSE(std::isfinite(decoded(stored.view())[57])) << bad;
    float largest = 0;
    cpu_kernels().amax(stored.view(), &largest, {});
    EXPECT_FALSE(std::isfinite(largest)) << bad;
  }
}

TEST_P(QuantizeTest, EmptyMatricesAreLeftAlone) {
  OwnedMatrix none(kFp32, 0, 16), out(GetParam(), 0, 16);
  cpu_kernels().quantize({.in = none.view(), .out = out.view()}, {});
  OwnedMatrix narrow(kFp32, 16, 0), narrow_out(GetParam(), 16, 0);
  cpu_kernels().quantize({.in = narrow.view(), .out = narrow_out.view()}, {});
  cpu_kernels().dequantize(narrow_out.view(), narrow.view(), {});
  float largest = 7;
  cpu_kernels().amax(none.view(), &largest, {});
  EXPECT_EQ(largest, 0.0f);
}

// Fact 25.
TEST_P(QuantizeTest, TransposedCodesAreThoseOfTheTransposedMatrix) {
  const TensorFormat format = GetParam();
  for (const Shape shape : {Shape{1, 1}, Shape{70, 129}, Shape{1000, 17}, Shape{1, 65}, Shape{130, 300}}) {
    const std::vector<float> values = normal_values(shape.rows * shape.cols, 6);
    std::vector<float> turned(values.size());
    for (std::int64_t i = 0; i < shape.rows * shape.cols; ++i) {
      turned[static_cast<std::size_t>(i % shape.cols * shape.rows + i / shape.cols)] =
          values[static_cast<std::size_t>(i)];
    }
    OwnedMatrix out(format, shape.rows, shape.cols), transposed(format, shape.cols, shape.rows);
    const OwnedMatrix in = make_matrix(values, kFp32, shape.rows, shape.cols);
    const QuantizeArgs args{.in = in.view(), .out = out.view(), .out_transposed = transposed.view()};
    if (format.scaling == Scaling::kGroup || format.scaling == Scaling::kRow) {
      EXPECT_THROW(cpu_kernels().quantize(args, {}), std::logic_error);
      continue;
    }
    cpu_kernels().quantize(args, {});
    const OwnedMatrix expected = make_matrix(turned, format, shape.cols, shape.rows);
    ASSERT_EQ(transposed.data(), expected.data());
    ASSERT_EQ(transposed.scale(), expected.scale());
  }
}

// The definition, element by element: scale from the maximum, code from value times the scale's reciprocal.
TEST(QuantizePerTensorTest, FollowsItsDefinition) {
  for (const TensorFormat& format : {kE4M3Tensor, kE5M2Tensor}) {
    const std::vector<float> values = normal_values(999, 7, 0.02);
    const OwnedMatrix stored = make_matrix(values, format, 27, 37);
    const float scale = amax_of(values) / max_value(format.format);
    ASSERT_EQ(scale_of(stored.view(), 0, 0), double{scale});
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float scaled = values[i] * (1.0f / scale);
      ASSERT_EQ(stored.data()[i], format == kE4M3Tensor ? encode_e4m3(scaled) : encode_e5m2(scaled));
    }
  }
}

// Fact 24: the maximum that a producer hands on gives the bits of the one found here; a stale one saturates
// (fact 35).
TEST(QuantizePerTensorTest, TakesTheMaximumOfItsProducer) {
  const std::vector<float> values = normal_values(1000, 8);
  const OwnedMatrix in = make_matrix(values, kFp32, 10, 100);
  const OwnedMatrix found = make_matrix(values, kE4M3Tensor, 10, 100);
  OwnedMatrix given(kE4M3Tensor, 10, 100);
  float largest = amax_of(values);
  cpu_kernels().quantize({.in = in.view(), .out = given.view(), .amax = &largest}, {});
  EXPECT_EQ(given.data(), found.data());
  EXPECT_EQ(given.scale(), found.scale());
  largest /= 2;
  cpu_kernels().quantize({.in = in.view(), .out = given.view(), .amax = &largest}, {});
  for (const double value : decoded(given.view())) ASSERT_LE(std::fabs(value), double{largest} * (1 + 1e-6));
}

// Codes are made with the scale as it is stored: no code has a neighbour that is nearer, saturation apart.
TEST(QuantizePerGroupTest, EveryCodeIsTheNearestOnTheGridThatDecodingUses) {
  const std::vector<float> values = normal_values(64 * 48, 9);
  const OwnedMatrix stored = make_matrix(values, kE4M3Group16, 64, 48);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / 48, col = static_cast<std::int64_t>(i) % 48;
    const double scale = scale_of(stored.view(), row, col);
    const int code = stored.data()[i] & 0x7F;
    const auto error = [&](int candidate) {
      return std::fabs(std::fabs(double{values[i]}) -
                       scale * double{decode_e4m3(static_cast<std::uint8_t>(candidate))});
    };
    if (code > 0) {
      ASSERT_LE(error(code), error(code - 1) * (1 + 1e-5));
    }
    if (code < 0x7E) {
      ASSERT_LE(error(code), error(code + 1) * (1 + 1e-5));
    }
  }
}

// Fact 23: signal to noise of Gaussian data, in decibels.
TEST(QuantizePerGroupTest, SignalToNoiseOfGaussianData) {
  const std::vector<float> values = normal_values(512 * 1024, 10);
  const auto signal_to_noise = [&](const TensorFormat& format) {
    const OwnedMatrix in = make_matrix(values, kFp32, 512, 1024);
    const OwnedMatrix stored = make_matrix(values, format, 512, 1024);
    ErrorSums sums;
    cpu_kernels().quantization_error(in.view(), stored.view(), &sums, {});
    return 10 * std::log10(sums.reference_squared / sums.error_squared);
  };
  EXPECT_NEAR(signal_to_noise(kE4M3Group16), 33.0, 0.2);
  EXPECT_NEAR(signal_to_noise(kE4M3Group128), 31.8, 0.2);
  EXPECT_NEAR(signal_to_noise(kE4M3Tensor), 31.6, 0.2);
  EXPECT_NEAR(signal_to_noise(kE5M2Group16), 27.0, 0.2);
  EXPECT_NEAR(signal_to_noise(kE5M2Tensor), 25.6, 0.2);
}

TEST(QuantizeChecksTest, RefusesWhatHasNoMeaning) {
  OwnedMatrix in(kFp32, 4, 8), fp8(kE4M3Tensor, 4, 8), wrong_shape(kBf16, 8, 4);
  const auto quantize = [](const ConstMatrix& from, const Matrix& to) {
    cpu_kernels().quantize({.in = from, .out = to}, {});
  };
  EXPECT_THROW(quantize(in.view(), wrong_shape.view()), std::logic_error);
  EXPECT_THROW(quantize(fp8.view(), in.view()), std::logic_error);
  Matrix no_scale = fp8.view();
  no_scale.scale = nullptr;
  EXPECT_THROW(quantize(in.view(), no_scale), std::logic_error);
  OwnedMatrix scaled_bf16({Format::kBf16, Scaling::kTensor, 0, ScaleFormat::kFp32}, 4, 8);
  EXPECT_THROW(quantize(in.view(), scaled_bf16.view()), std::logic_error);
  EXPECT_THROW(cpu_kernels().dequantize(in.view(), fp8.view(), {}), std::logic_error);
}

// More than 2^31 elements: untouched pages of an anonymous mapping cost no memory.
TEST(LargeMatrixTest, IndicesGoBeyond32Bits) {
  constexpr std::int64_t kRows = 2, kCols = (std::int64_t{1} << 30) + 8;
  constexpr std::size_t kBytes = kRows * kCols;
  void* codes =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(codes, MAP_FAILED);
  madvise(codes, kBytes, MADV_NOHUGEPAGE);
  static_cast<std::uint8_t*>(codes)[kBytes - 1] = encode_e4m3(-56.0f);
  const float scale = 0.5f;
  float largest = 0;
  cpu_kernels().amax({codes, &scale, kE4M3Tensor, kRows, kCols}, &largest, {});
  munmap(codes, kBytes);
  EXPECT_EQ(largest, 28.0f);
}

}  // namespace
}  // namespace coat::kernels::test
