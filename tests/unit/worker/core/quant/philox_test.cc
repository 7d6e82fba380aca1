#include "worker/core/quant/philox.h"

#include <cmath>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat {
namespace {

using testing::ElementsAre;

// The known answers that are published with the generator (Random123, kat_vectors, philox4x32 with 7 and 10
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
  EXPECT_THAT(philox4x32<7>({{0, 0, 0, 0}}, {{0, 0}}).word,
              ElementsAre(0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u));
  EXPECT_THAT(philox4x32<7>({{kOnes, kOnes, kOnes, kOnes}}, {{kOnes, kOnes}}).word,
              ElementsAre(0x5207ddc2u, 0x45165e59u, 0x4d8ee751u, 0x8c52f662u));
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
  EXPECT_EQ(rounding_uniform(0), 0x1p-17f);
  EXPECT_EQ(rounding_uniform(0xFFFF), 1 - 0x1p-17f);
  EXPECT_EQ(rounding_uniform(0x8000), 0.5f + 0x1p-17f);
  EXPECT_EQ(weight_rounding_bits(0x80FE), 0xFE80u);
}

// Eight elements a block, each with bits of its own.
TEST(PhiloxTest, NoTwoElementsRoundWithTheSameBits) {
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>> places;
  const std::uint64_t start = (std::uint64_t{1} << 40) - 512;
  for (std::uint64_t index = start; index < start + 1024; ++index) {
    const RoundingPlace place = RoundingPlace::of(index);
    EXPECT_GE(place.block, start / 8);
    EXPECT_LT(place.block, (start + 1024) / 8);
    EXPECT_LT(place.word, 4u);
    EXPECT_TRUE(places.insert({place.block, place.word, place.half}).second) << index;
  }
  const PhiloxStream stream{3, 5, 7};
  const PhiloxBlock block = philox4x32<kRoundingRounds>(stream.counter(32), stream.key());
  EXPECT_EQ(stream.rounding_bits(257), block.word[1] & 0xFFFF);
  EXPECT_EQ(stream.rounding_bits(257 + 4), block.word[1] >> 16);
}

TEST(PhiloxTest, RoundingNumbersAreUniformAndUncorrelated) {
  const PhiloxStream stream{1, 1, 0}, next{1, 2, 0};
  constexpr int kNumbers = 100'000;
  // Of moments, weights, the element four further on, and the next step.
  double sum[4] = {}, squares[4] = {}, products[4] = {};
  for (std::uint64_t i = 0; i < kNumbers; ++i) {
    const std::uint32_t bits = stream.rounding_bits(i);
    const float u[] = {rounding_uniform(bits), rounding_uniform(weight_rounding_bits(bits)),
                       rounding_uniform(stream.rounding_bits(i + 4)),
                       rounding_uniform(next.rounding_bits(i))};
    for (std::size_t k = 0; k < 4; ++k) {
      sum[k] += double{u[k]};
      squares[k] += double{u[k]} * double{u[k]};
      products[k] += (double{u[0]} - 0.5) * (double{u[k]} - 0.5);
    }
  }
  for (std::size_t k = 0; k < 4; ++k) {
    // Five standard deviations of the means of u, u^2 and the product of two.
    EXPECT_NEAR(sum[k] / kNumbers, 0.5, 5 * std::sqrt(1.0 / 12 / kNumbers));
    EXPECT_NEAR(squares[k] / kNumbers, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kNumbers));
    if (k > 0) {
      // With its bytes a and b exchanged 256 a + b has the covariance 2 * 256 var(a), of 65537 var(a).
      const double exact = k == 1 ? 1.0 / 12 * 512 / 65537 : 0;
      EXPECT_NEAR(products[k] / kNumbers, exact, 5 * (1.0 / 12) / std::sqrt(kNumbers)) << k;
    }
  }
}

}  // namespace
}  // namespace coat
