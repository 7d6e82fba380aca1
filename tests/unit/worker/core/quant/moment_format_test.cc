#include "worker/core/quant/moment_format.h"

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "worker/core/quant/moment_table.h"

namespace coat {
namespace {

double magnitude(MomentCode code, int index) {
  return double{MomentTable::of(code).values(kPlainRow)[index]};
}

TEST(MomentFormatTest, NamesAreDistinct) {
  std::set<std::string> names;
  for (const MomentCode code : {MomentCode::kFp32, MomentCode::kE4M3, MomentCode::kE5M2, MomentCode::kDe8,
                                MomentCode::kDe8Unsigned, MomentCode::kLog255, MomentCode::kSoftsign8,
                                MomentCode::kSqrt8, MomentCode::kOctave8, MomentCode::kOctave8Unsigned}) {
    EXPECT_TRUE(names.insert(name_of(code)).second) << name_of(code);
  }
  EXPECT_FALSE(names.contains("unknown"));
}

// A byte an element, and for each group amax and, where it expands, the row.
TEST(MomentFormatTest, BytesCountCodesAndGroups) {
  MomentFormat format = moment_format(MomentCode::kLog255, true, 128, Rounding::kStochastic);
  EXPECT_EQ(format.total_bytes(1280), 1280 + 10 * 5);
  EXPECT_EQ(format.total_bytes(1281), 1281 + 11 * 5);
  format.amax_format = Format::kBf16;
  EXPECT_EQ(format.total_bytes(1280), 1280 + 10 * 3);
  format.code = MomentCode::kE4M3;
  format.expand = false;
  EXPECT_EQ(format.total_bytes(1280), 1280 + 10 * 2);
  EXPECT_EQ(MomentFormat{}.total_bytes(1000), 4000);
  EXPECT_EQ(MomentFormat{}.groups(1000), 0);
}

TEST(MomentFormatTest, WhatCannotBeStoredIsRefused) {
  const MomentFormat good = moment_format(MomentCode::kE4M3, true, 128, Rounding::kNearestEven);
  EXPECT_NO_THROW(require_usable(good, MomentUse::kFirst));
  EXPECT_NO_THROW(require_usable(MomentFormat{}, MomentUse::kFirst));
  MomentFormat bad = good;
  bad.group = 0;
  EXPECT_THROW(require_usable(bad, MomentUse::kSecond), std::logic_error);
  bad = good;
  bad.amax_format = Format::kE4M3;
  EXPECT_THROW(require_usable(bad, MomentUse::kSecond), std::logic_error);
  bad = good;
  bad.range_bound = 1.0;
  EXPECT_THROW(require_usable(bad, MomentUse::kSecond), std::logic_error);
  for (const MomentCode code :
       {MomentCode::kDe8Unsigned, MomentCode::kLog255, MomentCode::kSqrt8, MomentCode::kOctave8Unsigned}) {
    const MomentFormat format = moment_format(code, true, 128, Rounding::kNearestEven);
    EXPECT_THROW(require_usable(format, MomentUse::kFirst), std::logic_error) << name_of(code);
    EXPECT_NO_THROW(require_usable(format, MomentUse::kSecond)) << name_of(code);
  }
  const MomentFormat plain = moment_format(MomentCode::kLog255, false, 128, Rounding::kNearestEven);
  EXPECT_THROW(require_usable(plain, MomentUse::kSecond), std::logic_error);
}

TEST(MomentFormatTest, BoundsOfTheFp8FormatsAreThoseOfTheReference) {
  EXPECT_EQ(default_range_bound(MomentCode::kE4M3), 100352.0);
  EXPECT_EQ(default_range_bound(MomentCode::kE5M2), 57344.0 * 57344.0 / 2);
  EXPECT_EQ(kE4M3FullRange, 229376.0);
}

TEST(MomentCodeTest, CountsOfMagnitudes) {
  EXPECT_EQ(MomentTable::of(MomentCode::kE4M3).count(), 127);
  EXPECT_EQ(MomentTable::of(MomentCode::kE5M2).count(), 124);
  for (const MomentCode code : {MomentCode::kDe8, MomentCode::kSoftsign8}) {
    EXPECT_EQ(MomentTable::of(code).count(), 128);
    EXPECT_EQ(MomentTable::of(code).width(), 128);
  }
  for (const MomentCode code :
       {MomentCode::kDe8Unsigned, MomentCode::kLog255, MomentCode::kSqrt8, MomentCode::kOctave8Unsigned}) {
    EXPECT_EQ(MomentTable::of(code).count(), 256);
    EXPECT_EQ(MomentTable::of(code).width(), 256);
  }
  EXPECT_THROW(MomentTable::of(MomentCode::kFp32), std::logic_error);
}

// Values of bitsandbytes' maps: the middle of [0.1, 1) in the smallest decade, the two middles of the next,
// ..., and the largest below 1; 64 (128) equal steps in the decade below 1.
TEST(MomentCodeTest, De8IsTheDynamicMap) {
  EXPECT_NEAR(magnitude(MomentCode::kDe8, 1), 0.55e-6, 1e-13);
  EXPECT_NEAR(magnitude(MomentCode::kDe8, 2), 3.25e-6, 1e-12);
  EXPECT_NEAR(magnitude(MomentCode::kDe8, 3), 7.75e-6, 1e-12);
  EXPECT_NEAR(magnitude(MomentCode::kDe8, 4), 2.125e-5, 1e-11);
  EXPECT_NEAR(magnitude(MomentCode::kDe8, 64), 0.1 + 0.9 / 128, 1e-7);
  EXPECT_NEAR(magnitude(MomentCode::kDe8, 126), 1 - 1.5 * 0.9 / 64, 1e-7);
  EXPECT_EQ(magnitude(MomentCode::kDe8, 127), 1.0);
  EXPECT_NEAR(magnitude(MomentCode::kDe8Unsigned, 1), 3.25e-7, 1e-13);
  EXPECT_NEAR(magnitude(MomentCode::kDe8Unsigned, 2), 7.75e-7, 1e-13);
  EXPECT_NEAR(magnitude(MomentCode::kDe8Unsigned, 254), 1 - 0.45 / 128, 1e-7);
  EXPECT_EQ(magnitude(MomentCode::kDe8Unsigned, 255), 1.0);
}

// y = 2z / (1 + z) in 1/127ths, sqrt(z) in 1/255ths, each rounded to nearest there.
TEST(MomentCodeTest, CompandedCodesAreThoseOfTheirFormulas) {
  for (double z = 0.0003; z < 1; z *= 1.01) {
    const auto ratio = static_cast<float>(z);
    const double y = 2.0 * double{ratio} / (1.0 + double{ratio}) * 127, root = std::sqrt(double{ratio}) * 255;
    const int softsign =
        nearest_code<7>(MomentTable::of(MomentCode::kSoftsign8).boundaries(kPlainRow), ratio);
    const int sqrt8 = nearest_code<8>(MomentTable::of(MomentCode::kSqrt8).boundaries(kPlainRow), ratio);
    EXPECT_LE(std::fabs(softsign - y), 0.5 + 1e-4) << z;
    EXPECT_LE(std::fabs(sqrt8 - root), 0.5 + 1e-4) << z;
  }
  EXPECT_NEAR(magnitude(MomentCode::kSoftsign8, 64), 64.0 / 127 / (2 - 64.0 / 127), 1e-7);
  EXPECT_NEAR(magnitude(MomentCode::kSqrt8, 128), std::pow(128.0 / 255, 2), 1e-7);
}

TEST(MomentCodeTest, Log255HasEqualRatiosOverARangeThatWastesLittle) {
  const RowChoice choice(moment_format(MomentCode::kLog255, true, 128, Rounding::kNearestEven));
  const MomentTable& table = MomentTable::of(MomentCode::kLog255);
  for (double log2_ratio = 0.05; log2_ratio < 126; log2_ratio *= 1.007) {
    const auto ratio = static_cast<float>(std::exp2(log2_ratio));
    const int row = choice.row(ratio, 1.0f);
    const float* values = table.values(row);
    const double range = -std::log2(double{values[1]});
    ASSERT_GE(range, log2_ratio * (1 - 1e-6)) << row;
    ASSERT_LE(range, log2_ratio * 1.033) << row;
    for (int code = 1; code < 255; ++code) {
      ASSERT_NEAR(std::log2(double{values[code + 1]} / double{values[code]}), range / 254, 4e-7);
    }
    ASSERT_NEAR(table.exponent(row), std::log2(kE4M3RangeBound) / range, 1e-5 * table.exponent(row));
  }
  EXPECT_EQ(choice.row(1.0f, 1.0f), kLastRow);
  EXPECT_EQ(choice.row(3e38f, 1e-45f), 0);
}

TEST(StoredAmaxTest, Bf16IsRoundedUpAndNothingIsInfinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(stored_amax(1.0f, true), 1.0f);
  EXPECT_EQ(stored_amax(1.0f + 0x1p-20f, true), 1.0f + 0x1p-7f);
  EXPECT_EQ(stored_amax(0.0f, true), 0.0f);
  EXPECT_GE(stored_amax(std::numeric_limits<float>::denorm_min(), true),
            std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(stored_amax(3.3f, false), 3.3f);
  for (const bool bf16 : {false, true}) {
    EXPECT_TRUE(std::isfinite(stored_amax(std::numeric_limits<float>::max(), bf16)));
    EXPECT_TRUE(std::isfinite(stored_amax(kInfinity, bf16)));
    EXPECT_TRUE(std::isfinite(stored_amax(std::numeric_limits<float>::quiet_NaN(), bf16)));
  }
}

}  // namespace
}  // namespace coat
