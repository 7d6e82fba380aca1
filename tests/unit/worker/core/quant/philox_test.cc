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
  const PhiloxStream base{7, 11, 3, 1};
  std::set<float> seen{base.uniform(5)};
  EXPECT_TRUE(seen.insert(PhiloxStream{8, 11, 3, 1}.uniform(5)).second) << "seed";
  EXPECT_TRUE(seen.insert(PhiloxStream{7 + (std::uint64_t{1} << 32), 11, 3, 1}.uniform(5)).second)
      << "seed, upper half";
  EXPECT_TRUE(seen.insert(PhiloxStream{7, 12, 3, 1}.uniform(5)).second) << "step";
  // Shares its place in the key with the seed's upper half.
  const PhiloxStream late{7, 11 + (std::uint64_t{1} << 32), 3, 1};
  EXPECT_NE(late.uniform(5), base.uniform(5)) << "step, upper half";
  EXPECT_TRUE(seen.insert(PhiloxStream{7, 11, 4, 1}.uniform(5)).second) << "parameter";
  EXPECT_TRUE(seen.insert(PhiloxStream{7, 11, 3, 2}.uniform(5)).second) << "moment";
  EXPECT_TRUE(seen.insert(base.uniform(6)).second) << "index";
  EXPECT_TRUE(seen.insert(base.uniform(5 + (std::uint64_t{1} << 36))).second) << "index beyond 32 bits";
}

TEST(PhiloxTest, NumbersAreUniform) {
  const PhiloxStream stream{1, 1, 0, 1};
  constexpr int kNumbers = 100'000;
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < kNumbers; ++i) {
    const double u = stream.uniform(i);
    sum += u;
    squares += u * u;
  }
  // Five standard deviations of the means of u and u^2.
  EXPECT_NEAR(sum / kNumbers, 0.5, 5 * std::sqrt(1.0 / 12 / kNumbers));
  EXPECT_NEAR(squares / kNumbers, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kNumbers));
}

}  // namespace
}  // namespace coat
