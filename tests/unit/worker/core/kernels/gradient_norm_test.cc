#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::test {
namespace {

TEST(SumOfSquaresTest, IsExactToFp64AndSeesNonFiniteValues) {
  for (const std::int64_t count : {0, 1, 7, 17, 4096, 4099, 50'000}) {
    std::vector<float> values = normal_values(count, 16, 1e15);
    double expected = 2, found = 2;
    for (const float value : values) expected += double{value} * double{value};
    cpu_kernels().sum_of_squares({{values.data(), Format::kFp32, count}}, &found, {});
    EXPECT_NEAR(found / expected, 1, 1e-12);
    if (count == 0) continue;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      values.back() = bad;
      double sum = 0;
      cpu_kernels().sum_of_squares({{values.data(), Format::kFp32, count}}, &sum, {});
      EXPECT_FALSE(std::isfinite(sum));
    }
  }
}

TEST(SumOfSquaresTest, Bf16IsTheSumOfItsValues) {
  for (const std::int64_t count : {1, 9, 4097, 20'000}) {
    std::vector<float> values = normal_values(count, 17);
    std::vector<std::uint16_t> codes;
    for (float& value : values) {
      codes.push_back(encode_bf16(value));
      value = decode_bf16(codes.back());
    }
    double from_codes = 0, from_values = 0;
    cpu_kernels().sum_of_squares({{codes.data(), Format::kBf16, count}}, &from_codes, {});
    cpu_kernels().sum_of_squares({{values.data(), Format::kFp32, count}}, &from_values, {});
    EXPECT_EQ(from_codes, from_values);
  }
  double sum = 0;
  EXPECT_THROW(cpu_kernels().sum_of_squares({{&sum, Format::kE4M3, 1}}, &sum, {}), std::logic_error);
}

TEST(SumOfSquaresTest, ManyArraysAreOneSum) {
  std::vector<std::vector<float>> values;
  std::vector<SquaredArray> arrays;
  double expected = 0, found = 0;
  for (const std::int64_t count : {70'000, 3, 0, 65'536, 4096}) values.push_back(normal_values(count, 18));
  for (const std::vector<float>& each : values) {
    arrays.push_back({each.data(), Format::kFp32, static_cast<std::int64_t>(each.size())});
    for (const float value : each) expected += double{value} * double{value};
  }
  cpu_kernels().sum_of_squares(arrays, &found, {});
  EXPECT_NEAR(found / expected, 1, 1e-12);
  cpu_kernels().sum_of_squares({}, &found, {});
  EXPECT_NEAR(found / expected, 1, 1e-12) << "nothing is added";
}

float factor_of(double sum_of_squares, double clip_norm) {
  float factor = -1;
  cpu_kernels().clip_factor({.sum_of_squares = &sum_of_squares, .clip_norm = clip_norm, .factor = &factor},
                            {});
  return factor;
}

TEST(ClipFactorTest, BringsTheNormToItsBoundAndLeavesSmallerOnes) {
  EXPECT_EQ(factor_of(16, 1), 0.25f);
  EXPECT_EQ(factor_of(16, 4), 1.0f);
  EXPECT_EQ(factor_of(0.25, 1), 1.0f);
  EXPECT_EQ(factor_of(0, 1), 1.0f);
  EXPECT_EQ(factor_of(1e6, 0), 1.0f) << "no clipping";
  EXPECT_EQ(factor_of(9, 0.7), static_cast<float>(0.7 / 3.0));
}

TEST(ClipFactorTest, IsNanWhereTheNormIsNotFinite) {
  for (const double clip_norm : {0.0, 1.0}) {
    EXPECT_TRUE(std::isnan(factor_of(std::numeric_limits<double>::infinity(), clip_norm)));
    EXPECT_TRUE(std::isnan(factor_of(std::numeric_limits<double>::quiet_NaN(), clip_norm)));
  }
}

}  // namespace
}  // namespace coat::kernels::test
