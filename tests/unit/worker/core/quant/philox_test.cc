#include "worker/core/quant/philox.h"

#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat {
namespace {

using testing::ElementsAre;

// The known answers that are published with the generator (Random123, kat_vectors, philox4x32 with 10
// rounds).
TEST(PhiloxTest, MatchesThePublishedKnownAnswers) {
  EXPECT_THAT(philox4x32({{0, 0, 0, 0}}, {{0, 0}}).word,
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  constexpr std::uint32_t kOnes = 0xFFFFFFFFu;
  EXPECT_THAT(philox4x32({{kOnes, kOnes, kOnes, kOnes}}, {{kOnes, kOnes}}).word,
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      philox4x32({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, {{0xa4093822u, 0x299f31d0u}}).word,
      ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(PhiloxTest, UniformStaysBelowOne) {
  EXPECT_EQ(philox_uniform(0), 0.0f);
  EXPECT_LT(philox_uniform(0xFFFFFFFFu), 1.0f);
  EXPECT_EQ(philox_uniform(0x80000000u), 0.5f);
}

TEST(PhiloxTest, EveryPartOfTheKeyMatters) {
  const PhiloxStream base{7, 11, 3};
  std::set<std::uint32_t> seen{base.word(5)};
  EXPECT_TRUE(seen.insert(PhiloxStream{8, 11, 3}.word(5)).second) << "seed";
  EXPECT_TRUE(seen.insert(PhiloxStream{7 + (std::uint64_t{1} << 32), 11, 3}.word(5)).second)
      << "seed, upper half";
  EXPECT_TRUE(seen.insert(PhiloxStream{7, 12, 3}.word(5)).second) << "step";
  // Shares its place in the key with the seed's upper half.
  const PhiloxStream late{7, 11 + (std::uint64_t{1} << 32), 3};
  EXPECT_NE(late.word(5), base.word(5)) << "step, upper half";
  EXPECT_TRUE(seen.insert(PhiloxStream{7, 11, 4}.word(5)).second) << "parameter";
  EXPECT_TRUE(seen.insert(base.word(6)).second) << "index";
  EXPECT_TRUE(seen.insert(base.word(5 + (std::uint64_t{1} << 36))).second) << "index beyond 32 bits";
}

TEST(PhiloxTest, RoundingNumbersAreTheMiddlesOfSixteenBits) {
  EXPECT_EQ(rounding_uniform(0, RoundingUse::kMoment1), 0x1p-17f);
  EXPECT_EQ(rounding_uniform(0x0000FFFFu, RoundingUse::kMoment1), 1 - 0x1p-17f);
  EXPECT_EQ(rounding_uniform(0x0000FFFFu, RoundingUse::kMoment2), 0x1p-17f);
  EXPECT_EQ(rounding_uniform(0x8000FFFFu, RoundingUse::kMoment2), 0.5f + 0x1p-17f);
  EXPECT_EQ(rounding_bits(0x80010001u, RoundingUse::kWeight), 0x8000u);
}

constexpr RoundingUse kUses[] = {RoundingUse::kMoment1, RoundingUse::kMoment2, RoundingUse::kWeight};

TEST(PhiloxTest, RoundingNumbersAreUniformAndUncorrelatedInPairs) {
  const PhiloxStream stream{1, 1, 0};
  constexpr int kNumbers = 100'000;
  double sum[3] = {}, squares[3] = {}, products[3] = {};
  for (std::uint64_t i = 0; i < kNumbers; ++i) {
    double u[3];
    for (std::size_t use = 0; use < 3; ++use) u[use] = double{rounding_uniform(stream.word(i), kUses[use])};
    for (std::size_t use = 0; use < 3; ++use) {
      sum[use] += u[use];
      squares[use] += u[use] * u[use];
      products[use] += (u[use] - 0.5) * (u[(use + 1) % 3] - 0.5);
    }
  }
  for (std::size_t use = 0; use < 3; ++use) {
    // Five standard deviations of the means of u, u^2 and the product of two.
    EXPECT_NEAR(sum[use] / kNumbers, 0.5, 5 * std::sqrt(1.0 / 12 / kNumbers));
    EXPECT_NEAR(squares[use] / kNumbers, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kNumbers));
    EXPECT_NEAR(products[use] / kNumbers, 0, 5 * (1.0 / 12) / std::sqrt(kNumbers));
  }
}

}  // namespace
}  // namespace coat
