#include "worker/core/quant/weight_format.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "worker/core/quant/bf16.h"
#include "worker/core/quant/philox.h"

namespace coat {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float joined(const SplitWeight& split) { return join_weight(split.bf16, split.residual); }

// Numbers of every exponent and sign.
std::vector<float> finite_values() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               0x1p-126f,
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::lowest()};
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    const auto value = std::bit_cast<float>(philox4x32({{i, 0, 0, 0}}, {{5, 0}}).word[0]);
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

// Half a unit of 16 significant bits; of the largest numbers the rounding up is cut.
TEST(SplitWeightTest, KeepsTwentyFourBits) {
  for (const float value : finite_values()) {
    const double unit = std::max(std::exp2(std::floor(std::log2(std::fabs(double{value})) - 15)), 0x1p-141);
    // Above 0x7F7F and 127 there is nothing finite: half a unit of BF16 is cut there.
    const double bound = std::fabs(value) > 0x1.fefep127f ? 0x1.02p119 : unit / 2;
    ASSERT_NEAR(double{joined(split_weight(value))}, double{value}, bound) << value;
    ASSERT_EQ(std::signbit(joined(split_weight(value))), std::signbit(value));
  }
}

// The BF16 alone is the nearest to the 24 bits: half its unit.
TEST(SplitWeightTest, TheUpperPartIsTheNearestBf16) {
  for (const float value : finite_values()) {
    if (std::fabs(value) > 0x1.fep127f) continue;
    const SplitWeight split = split_weight(value);
    const double kept = joined(split);
    const double here = std::fabs(double{decode_bf16(split.bf16)} - kept);
    for (const int step : {-1, 1}) {
      const std::uint32_t magnitude = (split.bf16 & 0x7FFFu) + static_cast<std::uint32_t>(step);
      if (magnitude >= 0x7F80u) continue;
      const auto neighbour = static_cast<std::uint16_t>((split.bf16 & 0x8000u) | magnitude);
      ASSERT_LE(here, std::fabs(double{decode_bf16(neighbour)} - kept)) << value;
    }
  }
}

// Every pair that split_weight makes comes back: a stored weight that does not change keeps its bits.
TEST(SplitWeightTest, EveryPairSurvives) {
  for (std::uint32_t code = 0; code < 0x10000u; ++code) {
    if ((code & 0x7F80u) == 0x7F80u) continue;
    for (int residual = -128; residual <= 127; ++residual) {
      if ((code & 0x7FFFu) == 0 && residual < 0) continue;          // nothing lies below zero's magnitude
      if ((code & 0x7FFFu) == 0x7F7Fu && residual > 126) continue;  // where the largest values end
      const SplitWeight again =
          split_weight(join_weight(static_cast<std::uint16_t>(code), static_cast<std::int8_t>(residual)));
      ASSERT_EQ(again.bf16, code) << residual;
      ASSERT_EQ(again.residual, residual) << code;
    }
  }
}

TEST(SplitWeightTest, SpecialValues) {
  for (const float value : {kInfinity, -kInfinity}) {
    EXPECT_EQ(split_weight(value).residual, 0);
    EXPECT_EQ(joined(split_weight(value)), value);
  }
  const SplitWeight nan = split_weight(std::bit_cast<float>(0x7F800001u));
  EXPECT_TRUE(std::isnan(joined(nan)));
  EXPECT_TRUE(std::isnan(decode_bf16(nan.bf16)));
  EXPECT_TRUE(std::isfinite(decode_bf16(split_weight(std::numeric_limits<float>::max()).bf16)));
  // Just below a power of two the BF16 is the power, and the residual counts in the smaller unit below it.
  const SplitWeight below = split_weight(1.0f - 0x1p-16f);
  EXPECT_EQ(decode_bf16(below.bf16), 1.0f);
  EXPECT_EQ(below.residual, -1);
  EXPECT_EQ(joined(below), 1.0f - 0x1p-16f);
}

// Of the 65,536 equally likely numbers exactly as many round up as the bits that are cut say.
TEST(RoundBf16StochasticTest, ProbabilityIsExact) {
  for (const std::uint32_t cut : {0u, 1u, 0x4000u, 0x8000u, 0xFFFFu}) {
    for (const std::uint32_t upper : {0x3F80u, 0xBF7Fu, 0x0001u, 0x0080u}) {
      const auto value = std::bit_cast<float>(upper << 16 | cut);
      std::uint32_t up = 0;
      for (std::uint32_t random = 0; random < 0x10000u; ++random) {
        const std::uint16_t code = round_bf16_stochastic(value, random);
        ASSERT_TRUE(code == upper || code == upper + 1);
        up += code == upper ? 0u : 1u;
      }
      EXPECT_EQ(up, cut);
    }
  }
}

TEST(RoundBf16StochasticTest, FiniteStaysFiniteAndSpecialValuesStay) {
  for (const std::uint32_t random : {0u, 0x1234u, 0xFFFFu}) {
    EXPECT_EQ(round_bf16_stochastic(std::numeric_limits<float>::max(), random), 0x7F7F);
    EXPECT_EQ(round_bf16_stochastic(kInfinity, random), 0x7F80);
    EXPECT_EQ(round_bf16_stochastic(-kInfinity, random), 0xFF80);
    EXPECT_TRUE(std::isnan(decode_bf16(round_bf16_stochastic(std::bit_cast<float>(0x7F800001u), random))));
    EXPECT_EQ(round_bf16_stochastic(0.0f, random), 0);
    EXPECT_EQ(round_bf16_stochastic(-0.0f, random), 0x8000);
  }
}

}  // namespace
}  // namespace coat
