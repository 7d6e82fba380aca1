#include "worker/core/quant/moment_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/core/quant/fp8.h"
#include "worker/core/quant/philox.h"

namespace coat {
namespace {

using testing::ElementsAre;

constexpr int kMinRow = 2;  // of E4M3
const MomentTable& e4m3() { return MomentTable::of(MomentCode::kE4M3); }

RowChoice choice_of(double bound) {
  return RowChoice({.code = MomentCode::kE4M3, .expand = true, .range_bound = bound});
}

double k_of(double ratio, double bound = kE4M3RangeBound) {
  return choice_of(bound).row(static_cast<float>(ratio), 1.0f) / 16.0;
}

struct Group {
  int row = 0;
  float amax = 0;
  std::vector<int> codes;
  std::vector<float> decoded;
};

// Magnitudes only, to nearest.
Group quantize(const std::vector<float>& values) {
  Group group;
  group.amax = *std::max_element(values.begin(), values.end());
  float amin = group.amax;
  for (const float value : values) amin = value > 0 ? std::min(amin, value) : amin;
  group.row = choice_of(kE4M3RangeBound).row(group.amax, amin);
  for (const float value : values) {
    group.codes.push_back(nearest_code<7>(e4m3().boundaries(group.row), value / group.amax));
    group.decoded.push_back(group.amax * e4m3().values(group.row)[group.codes.back()]);
  }
  return group;
}

// COAT.md 5.1 fact 4.
TEST(MomentTableTest, KOfTheTable) {
  const std::pair<double, double> expected[] = {
      {3, 10.4375},  {4, 8.25},  {5, 7.125},    {8, 5.5},     {10, 5.0},    {16, 4.125},   {30, 3.375},
      {100, 2.5},    {300, 2.0}, {1000, 1.625}, {1e4, 1.25},  {1e5, 1.0},   {100352, 1.0}, {229376, 0.875},
      {1e6, 0.8125}, {1e9, 0.5}, {1e12, 0.375}, {1e20, 0.25}, {1e27, 0.125}};
  for (const auto& [ratio, k] : expected) EXPECT_EQ(k_of(ratio), k) << ratio;
  // 16.5625, 120.8, 1157.4 and infinity are more than 16k can hold in a byte.
  for (const double ratio : {2.0, 1.1, 1.01, 1.0}) EXPECT_EQ(k_of(ratio), 255.0 / 16) << ratio;
}

TEST(MomentTableTest, KIsTheFloorOfTheFormulaForBothBounds) {
  for (const double bound : {kE4M3RangeBound, kE4M3FullRange}) {
    for (double log2_ratio = 1.2; log2_ratio < 120; log2_ratio += 0.0137) {
      const auto ratio = static_cast<float>(std::exp2(log2_ratio));
      const double row = std::floor(16 * std::log2(bound) / std::log2(static_cast<double>(ratio)));
      ASSERT_EQ(k_of(ratio, bound) * 16, std::clamp(row, double{kMinRow}, 255.0)) << ratio;
    }
  }
  EXPECT_EQ(k_of(229376, kE4M3FullRange), 1.0);
}

constexpr MomentCode kCodes[] = {
    MomentCode::kE4M3,        MomentCode::kE5M2,    MomentCode::kDe8,
    MomentCode::kDe8Unsigned, MomentCode::kLog255,  MomentCode::kSoftsign8,
    MomentCode::kSqrt8,       MomentCode::kOctave8, MomentCode::kOctave8Unsigned};

TEST(MomentTableTest, RowsRiseStrictlyFromZeroToOne) {
  for (const MomentCode code : kCodes) {
    const MomentTable& table = MomentTable::of(code);
    const int last = table.count() - 1;
    for (int row = table.first_row(); row < kMomentRows; ++row) {
      SCOPED_TRACE(std::string(name_of(code)) + ", row " + std::to_string(row));
      const float* values = table.values(row);
      const float* boundaries = table.boundaries(row);
      ASSERT_EQ(values[0], 0.0f);
      ASSERT_EQ(values[last], 1.0f);
      for (int c = 0; c < last; ++c) {
        ASSERT_LT(values[c], values[c + 1]) << c;
        ASSERT_LE(values[c], boundaries[c]) << c;
        ASSERT_LT(boundaries[c], values[c + 1]) << c;
      }
      for (int c = last; c < table.width(); ++c) {
        ASSERT_TRUE(std::isnan(boundaries[c])) << c;
        ASSERT_TRUE(c == last || std::isinf(values[c])) << c;
      }
    }
  }
}

// Fact 6.
TEST(MomentTableTest, WorkedGroupOfPowersOfTwo) {
  const Group group = quantize({1, 2, 4, 8, 16, 32, 64, 128});
  EXPECT_EQ(group.row, 37);
  EXPECT_THAT(group.codes, ElementsAre(0x03, 0x0F, 0x21, 0x34, 0x47, 0x59, 0x6B, 0x7E));
  const double expected[] = {0.989596, 1.984793, 3.911163, 8.066475, 16.178606, 31.880997, 63.324059, 128};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(group.decoded[i] / expected[i], 1.0, 1e-6) << i;
}

// Fact 7.
TEST(MomentTableTest, WorkedGroupOfSecondMoments) {
  const std::vector<float> values = {1.2e-8f, 1.5e-8f, 2.0e-8f, 3.6e-8f};
  const Group group = quantize(values);
  EXPECT_EQ(group.row, 167);
  EXPECT_THAT(group.codes, ElementsAre(0x02, 0x14, 0x38, 0x7E));
  const double expected[] = {-0.01740, -0.00262, 0.00290, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(double{group.decoded[i]} / double{values[i]} - 1, expected[i], 5e-6) << i;
  }
}

// Values of one group with a ratio near 2^octaves, log-uniform.
std::vector<float> random_group(double octaves, float amax, std::uint32_t seed) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 128; ++i) {
    const double u = double{philox_uniform(philox4x32({{i, seed, 0, 0}}, {{1, 2}}).word[0])};
    values.push_back(static_cast<float>(double{amax} * std::exp2(-octaves * u)));
  }
  return values;
}

// Facts 5, 8 and 9.
TEST(MomentTableTest, InvariantsOfAGroup) {
  std::uint32_t seed = 0;
  for (double octaves = 0.01; octaves < 100; octaves *= 1.31) {
    const std::vector<float> values = random_group(octaves, 3e-5f, ++seed);
    const Group group = quantize(values);
    const double k = group.row / 16.0;
    const double power_of_two = 0x1p-12;
    std::vector<float> scaled = values;
    for (float& value : scaled) value *= static_cast<float>(power_of_two);
    const Group small = quantize(scaled);
    EXPECT_EQ(small.row, group.row);
    EXPECT_EQ(small.codes, group.codes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_GE(group.codes[i], 2) << "a value became (almost) zero at " << octaves << " octaves";
      if (values[i] == group.amax) {
        EXPECT_EQ(group.codes[i], 0x7E);
        EXPECT_EQ(group.decoded[i], group.amax);
      }
      if (group.codes[i] >= 8) {  // normal numbers: half a step is 1/16 of the expanded value at most
        const double bound = std::pow(1 - 1.0 / 17, -1 / k) - 1;
        EXPECT_LE(std::fabs(double{group.decoded[i]} / double{values[i]} - 1), bound + 1e-6) << octaves;
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (values[i] < values[j]) {
          EXPECT_LE(group.codes[i], group.codes[j]);
        }
      }
    }
  }
}

// Fact 10: the form with (s, k, c) that the paper's kernel evaluates, in FP64.
TEST(MomentTableTest, AgreesWithTheLiteralForm) {
  int ties = 0, compared = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const double octaves = 1.2 + 0.1 * seed;
    const std::vector<float> values = random_group(octaves, 1e-3f, seed);
    const Group group = quantize(values);
    const double k = group.row / 16.0;
    const double amax = group.amax;
    const double amin = *std::min_element(values.begin(), values.end());
    const double c = std::sqrt(amax) * std::sqrt(amin);
    const double s = std::pow(amax / c, k) / 448;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expanded = std::pow(double{values[i]} / c, k) / s;
      const int literal = encode_e4m3(static_cast<float>(expanded));
      ++compared;
      if (literal != group.codes[i]) {
        // Only where rounding of the power decides: within 1e-6 of the border between the two codes.
        const int low = std::min(literal, group.codes[i]);
        ASSERT_EQ(std::abs(literal - group.codes[i]), 1);
        const double border = (double{decode_e4m3(static_cast<std::uint8_t>(low))} +
                               double{decode_e4m3(static_cast<std::uint8_t>(low + 1))}) /
                              2;
        ASSERT_NEAR(expanded / border, 1.0, 1e-6);
        ++ties;
        continue;
      }
      const double code_value = decode_e4m3(static_cast<std::uint8_t>(literal));
      const double decoded = std::pow(code_value * s, 1 / k) * c;
      ASSERT_NEAR(double{group.decoded[i]} / decoded, 1.0, 1e-6);
    }
  }
  EXPECT_LT(ties * 1000, compared);
}

// Facts 16 to 19.
TEST(MomentTableTest, EdgeGroups) {
  for (const float constant :
       {1e-30f, 3.3e-7f, 0.1f, 7.0f, 1e30f, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_THAT(quantize({constant, constant, constant}).decoded, ElementsAre(constant, constant, constant));
    EXPECT_THAT(quantize({constant}).decoded, ElementsAre(constant));
  }
  for (std::size_t zero = 0; zero < 128; ++zero) {
    std::vector<float> values(128, 2.0f);
    values[127 - zero / 2] = 1.0f;
    values[zero] = 0.0f;
    const Group group = quantize(values);
    EXPECT_EQ(group.decoded[zero], 0.0f);
    EXPECT_EQ(group.row, 255) << zero;
  }
  EXPECT_EQ(quantize({1e27f, 1.0f}).row, 2);
  for (const float decoded : quantize({1e27f, 1e20f, 1e5f, 1.0f}).decoded) EXPECT_GT(decoded, 0.0f);
  const Group tiny = quantize({1e-24f, 1e-25f, 3e-25f});
  EXPECT_EQ(tiny.row, 80);
  for (const float decoded : tiny.decoded) EXPECT_TRUE(std::isfinite(decoded) && decoded > 0);
}

// Fact 12.
TEST(MomentTableTest, RequantizingIsIdempotent) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> values = random_group(0.5 + 0.5 * seed, 1.0f, seed);
    const Group once = quantize(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(nearest_code<7>(e4m3().boundaries(once.row), once.decoded[i] / once.amax), once.codes[i]);
    }
  }
}

// The mean of many stochastic roundings is the value itself, for any k (COAT.md 5.4).
TEST(MomentTableTest, StochasticRoundingIsUnbiasedInTheValueDomain) {
  constexpr int kDraws = 20'000;
  for (const int row : {2, 10, 16, 37, 160, 255}) {
    const float* values = e4m3().values(row);
    for (const int code : {2, 9, 60, 110, 125}) {
      const float low = values[code], high = values[code + 1];
      const float ratio = low + (high - low) * 0.3f;
      double sum = 0;
      for (std::uint32_t i = 0; i < kDraws; ++i) {
        const float uniform =
            philox_uniform(philox4x32({{i, 0, 0, 0}}, {{3, static_cast<std::uint32_t>(row)}}).word[0]);
        const int drawn = stochastic_code<7>(values, 126, ratio, uniform);
        ASSERT_TRUE(drawn == code || drawn == code + 1);
        sum += double{values[drawn]};
      }
      const double deviation = double{high - low} * std::sqrt(0.21 / kDraws);
      EXPECT_NEAR(sum / kDraws, double{ratio}, 5 * deviation) << row << " " << code;
    }
  }
}

TEST(MomentTableTest, StochasticRoundingKeepsWhatIsExact) {
  for (const int row : {2, 16, 37, 255}) {
    const float* values = e4m3().values(row);
    for (int code = 0; code < e4m3().count(); ++code) {
      for (const float uniform : {0x1p-17f, 0.5f, 1 - 0x1p-17f}) {
        ASSERT_EQ(stochastic_code<7>(values, 126, values[code], uniform), code);
      }
    }
  }
}

}  // namespace
}  // namespace coat
