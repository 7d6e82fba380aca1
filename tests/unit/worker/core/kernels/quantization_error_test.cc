#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"

namespace coat::kernels::test {
namespace {

ErrorSums measure(const OwnedMatrix& reference, const OwnedMatrix& stored) {
  ErrorSums sums;
  cpu_kernels().quantization_error(reference.view(), stored.view(), &sums, {});
  return sums;
}

class QuantizationErrorTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantizationErrorTest,
                         testing::Values(kBf16, kE4M3Tensor, kE5M2Tensor, kE4M3Group16, kE4M3Group20));

TEST_P(QuantizationErrorTest, SumsAreThoseOfTheDecodedValues) {
  const std::vector<float> values = normal_values(77 * 50, 1);
  const OwnedMatrix reference = make_matrix(values, kFp32, 77, 50);
  const OwnedMatrix stored = make_matrix(values, GetParam(), 77, 50);
  double error = 0, squares = 0, zeroed = 0;
  const std::vector<double> back = decoded(stored.view());
  for (std::size_t i = 0; i < back.size(); ++i) {
    error += std::pow(back[i] - double{values[i]}, 2);
    squares += double{values[i]} * double{values[i]};
    zeroed += back[i] == 0 && values[i] != 0 ? 1 : 0;
  }
  ErrorSums sums = measure(reference, stored);
  EXPECT_NEAR(sums.error_squared / error, 1, 1e-5);
  EXPECT_NEAR(sums.reference_squared / squares, 1, 1e-12);
  EXPECT_EQ(sums.underflowed, zeroed);
  EXPECT_EQ(sums.saturated, 0);
  EXPECT_EQ(sums.elements, 77 * 50);
  // They add up.
  cpu_kernels().quantization_error(reference.view(), stored.view(), &sums, {});
  EXPECT_EQ(sums.elements, 2 * 77 * 50);
  EXPECT_NEAR(sums.error_squared / error, 2, 1e-5);
}

// A scale of 1: what rounds beyond the largest code counts, what rounds to it by itself does not.
TEST(QuantizationErrorEdgeTest, CountsSaturationAndUnderflow) {
  const auto saturated = [](const TensorFormat& format, const std::vector<float>& values) {
    const auto cols = static_cast<std::int64_t>(values.size());
    const OwnedMatrix reference = make_matrix(values, kFp32, 1, cols);
    OwnedMatrix stored(format, 1, cols);
    const float amax = max_value(format.format);
    cpu_kernels().quantize({.in = reference.view(), .out = stored.view(), .amax = &amax}, {});
    return measure(reference, stored);
  };
  EXPECT_EQ(saturated(kE4M3Tensor, {448, 463.9f, 464, 464.1f, -500, 1e9f}).saturated, 3);
  EXPECT_EQ(saturated(kE5M2Tensor, {57344, 61439, 61440, -61441, 1e9f}).saturated, 3);
  EXPECT_EQ(saturated(kE4M3Tensor, {0, 1e-9f, -0x1p-10f, 0x1.1p-10f, 1}).underflowed, 2);
}

TEST(QuantizationErrorEdgeTest, Bf16ReferencesEmptyAndWrongShapes) {
  const std::vector<float> values = normal_values(64, 2);
  const OwnedMatrix bf16 = make_matrix(values, kBf16, 4, 16);
  EXPECT_EQ(measure(bf16, bf16).error_squared, 0);
  EXPECT_EQ(measure(OwnedMatrix(kBf16, 0, 16), OwnedMatrix(kE4M3Group16, 0, 16)).elements, 0);
  EXPECT_THROW(measure(bf16, OwnedMatrix(kBf16, 16, 4)), std::logic_error);
  EXPECT_THROW(measure(make_matrix(values, kE4M3Group16, 4, 16), bf16), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
