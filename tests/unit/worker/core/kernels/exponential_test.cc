#include "worker/core/kernels/api/exponential.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace coat::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double ulp(double value) {
  const int exponent = std::max(std::ilogb(value), -126);
  return std::ldexp(1.0, exponent - 23);
}

TEST(ExponentialTest, IsWithinTwoUlpAllOverFp32) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 2'003) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    const double exact = std::exp(double{x});
    const float found = exp_f32(x);
    if (exact > double{std::numeric_limits<float>::max()}) {
      ASSERT_EQ(found, kInfinity) << x;
    } else if (exact < 0x1p-149) {
      ASSERT_LE(found, 0x1p-149f) << x;
    } else {
      worst = std::max(worst, std::fabs(double{found} - exact) / ulp(exact));
      ASSERT_LE(worst, 2.0) << x;
    }
  }
  EXPECT_GT(worst, 0.4) << "nothing was compared";
}

TEST(ExponentialTest, SpecialValues) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(ExponentialTest, SigmoidStaysWithinZeroAndOne) {
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(200.0f), 1.0f);
  EXPECT_EQ(sigmoid_f32(-200.0f), 0.0f);
  for (float x = -30; x < 30; x += 0.01f) {
    const double exact = 1 / (1 + std::exp(-double{x}));
    ASSERT_NEAR(double{sigmoid_f32(x)} / exact, 1.0, 4 * 0x1p-23) << x;
  }
}

}  // namespace
}  // namespace coat::kernels
