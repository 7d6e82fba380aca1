// What holds for moments in every code: COAT.md 5.1 to 5.3, through the optimizer step that stores them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/optimizer_state.h"

namespace coat::kernels::test {
namespace {

const MomentFormat kPlain{};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<MomentFormat> formats_of(MomentUse use) {
  std::vector<MomentFormat> formats;
  for (const MomentCode code :
       {MomentCode::kE4M3, MomentCode::kE5M2, MomentCode::kDe8, MomentCode::kDe8Unsigned, MomentCode::kLog255,
        MomentCode::kSoftsign8, MomentCode::kSqrt8, MomentCode::kOctave8, MomentCode::kOctave8Unsigned}) {
    if (use == MomentUse::kFirst && !is_signed(code)) continue;
    for (const bool expand : {true, false}) {
      if (always_expands(code) && !expand) continue;
      for (const int group : {16, 100, 128, 1024}) {
        for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
          for (const Format amax : {Format::kFp32, Format::kBf16}) {
            MomentFormat format = moment_format(code, expand, group, rounding);
            format.amax_format = amax;
            formats.push_back(format);
          }
        }
      }
    }
  }
  return formats;
}

std::string describe(const MomentFormat& format) {
  return std::string(name_of(format.code)) + (format.expand ? " expanded" : "") + ", groups of " +
         std::to_string(format.group) +
         (format.rounding == Rounding::kStochastic ? ", stochastic" : ", nearest") + ", amax " +
         name_of(format.amax_format);
}

// What is stored of a moment and what it was made from.
struct Stored {
  std::vector<double> reference, decoded;
  StoredMoment moment;
};

// Gradients g of one step with beta 0: the first moment is g, the second g^2.
Stored store(const MomentFormat& format, MomentUse use, const std::vector<float>& gradients) {
  const bool first = use == MomentUse::kFirst;
  State state(first ? format : kPlain, first ? kPlain : format, std::vector<float>(gradients.size()));
  store_values(state, gradients);
  StoredMoment& moment = first ? state.m : state.v;
  std::vector<double> reference;
  for (const float g : gradients) reference.push_back(double{first ? g : g * g});
  return {reference, moment.decoded(), moment};
}

using Check = void (*)(const MomentFormat&, MomentUse);
void for_all_formats(Check check) {
  for (const MomentUse use : {MomentUse::kFirst, MomentUse::kSecond}) {
    for (const MomentFormat& format : formats_of(use)) {
      SCOPED_TRACE(describe(format) + (use == MomentUse::kFirst ? ", m" : ", v"));
      check(format, use);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Facts 5 and 17: signs and zeros are kept, and where the code expands nothing else becomes zero. The stored
// code is next to the value on its row.
TEST(MomentCodesTest, SignsZerosAndNeighbours) {
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    std::vector<float> values = lognormal(1111, 4);
    values[0] = 0.0f;
    values[300] = -0.0f;
    const Stored stored = store(format, use, values);
    const MomentTable& table = MomentTable::of(format.code);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = stored.reference[i], kept = stored.decoded[i];
      const std::size_t group = i / static_cast<std::size_t>(format.group);
      if (x == 0) {
        ASSERT_EQ(kept, 0) << i;
      }
      if (format.expand) {
        ASSERT_EQ(x == 0, kept == 0) << i;
      }
      ASSERT_GE(kept * x, 0) << i;
      const float* row = table.values(format.stores_row() ? stored.moment.row[group] : kPlainRow);
      const double ratio = std::fabs(x) / stored.moment.amax_of(i);
      const int code = stored.moment.data[i] & (table.width() - 1);
      const double below = code > 0 ? double{row[code - 1]} : 0;
      const double above = code + 1 < table.count() ? double{row[code + 1]} : kInfinity;
      ASSERT_GE(ratio, below * (1 - 1e-6)) << i;
      ASSERT_LE(ratio, above * (1 + 1e-6)) << i;
    }
  });
}

// Facts 16 and 5: with an exact amax, groups of one magnitude and the largest value of any group are exact.
TEST(MomentCodesTest, ConstantsAndSingleElementsAreExact) {
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{130}}) {
      for (const float magnitude : {3.3e-7f, 1e-18f, 0.1f, 1e15f}) {
        std::vector<float> values(count, magnitude);
        values.back() = -magnitude;
        const Stored stored = store(format, use, values);
        for (std::size_t i = 0; i < count; ++i) {
          if (format.amax_format == Format::kFp32) {
            ASSERT_EQ(stored.decoded[i], stored.reference[i]) << i;
          } else {  // a unit of BF16 above, and half a step of the code near its top
            ASSERT_NEAR(stored.decoded[i] / stored.reference[i], 1, format.expand ? 0.02 : 0.15) << i;
          }
        }
      }
    }
  });
}

TEST(MomentCodesTest, GroupsOfZerosStayZero) {
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    const Stored stored = store(format, use, std::vector<float>(300));
    for (const double kept : stored.decoded) ASSERT_EQ(kept, 0);
    for (const std::uint8_t row : stored.moment.row) ASSERT_EQ(row, kLastRow);
  });
}

// Facts 18 and 19: any range, subnormal numbers, and what does not fit into FP32: finite, and not zero where
// the code expands.
TEST(MomentCodesTest, ExtremeGroups) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    for (const std::vector<float>& group : {std::vector<float>{1.0f, 1e-27f, 1e-9f, 1e-20f},
                                            {1e-24f, 1e-25f, 3e-25f},
                                            {kTiny, 3 * kTiny, 100 * kTiny},
                                            {1e-12f, kTiny, 1e-38f},
                                            {1e19f, 1e-19f, 1.0f},
                                            {3e38f, kTiny, 1.0f},
                                            {1e38f, 3e38f}}) {
      const Stored stored = store(format, use, group);
      for (std::size_t i = 0; i < group.size(); ++i) {
        ASSERT_TRUE(std::isfinite(stored.decoded[i])) << i;
        if (format.expand && stored.reference[i] != 0) {
          ASSERT_NE(stored.decoded[i], 0) << stored.reference[i];
        }
      }
    }
  });
}

// Fact 9: groups times a power of two have the same codes and rows.
TEST(MomentCodesTest, ScaleInvariance) {
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    const std::vector<float> values = lognormal(300, 21);
    std::vector<float> scaled = values;
    for (float& value : scaled) value *= 0x1p-12f;
    const StoredMoment large = store(format, use, values).moment, small = store(format, use, scaled).moment;
    ASSERT_EQ(large.data, small.data);
    ASSERT_EQ(large.row, small.row);
  });
}

// Rounding to nearest keeps the order; fact 12: storing what was read back changes nothing while amax and
// amin stay.
TEST(MomentCodesTest, NearestIsMonotoneAndIdempotent) {
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    if (format.rounding != Rounding::kNearestEven || use != MomentUse::kFirst) return;
    std::vector<float> values = lognormal(format.group, 22);
    std::sort(values.begin(), values.end());
    const Stored once = store(format, use, values);
    ASSERT_TRUE(std::is_sorted(once.decoded.begin(), once.decoded.end()));
    std::vector<float> again;
    for (const double kept : once.decoded) again.push_back(static_cast<float>(kept));
    const Stored twice = store(format, use, again);
    if (twice.moment.row == once.moment.row && twice.moment.amax == once.moment.amax &&
        twice.moment.amax_bf16 == once.moment.amax_bf16) {
      ASSERT_EQ(twice.moment.data, once.moment.data);
    }
  });
}

// The mean over many draws is the value (COAT.md 5.4), for every code and both moments.
TEST(MomentCodesTest, StochasticRoundingIsUnbiased) {
  constexpr std::uint64_t kDraws = 400;
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    if (format.rounding != Rounding::kStochastic || format.group != 128) return;
    const std::vector<float> values = lognormal(128, 23);
    const bool first = use == MomentUse::kFirst;
    const MomentTable& table = MomentTable::of(format.code);
    std::vector<double> sum(values.size());
    std::vector<std::uint8_t> row;
    double amax = 0;
    for (std::uint64_t draw = 1; draw <= kDraws; ++draw) {
      State state(first ? format : kPlain, first ? kPlain : format, std::vector<float>(values.size()));
      AdamWArgs args = args_of(kPlain, draw, 0.0, 0.0);
      (first ? args.moment1 : args.moment2) = format;
      args.bias_correction1 = args.bias_correction2 = 1;
      run(state, values, args);
      const StoredMoment& moment = first ? state.m : state.v;
      const std::vector<double> decoded = moment.decoded();
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += decoded[i] / kDraws;
      row = moment.row;
      amax = moment.amax_of(0);
    }
    const float* steps = table.values(row.empty() ? kPlainRow : row[0]);
    double bias = 0, variance = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = std::fabs(double{first ? values[i] : values[i] * values[i]}) / amax;
      const auto* above = std::upper_bound(steps, steps + table.count() - 1, static_cast<float>(x));
      const double high = *above, low = above[-1];
      bias += std::fabs(sum[i]) / amax - x;
      variance += std::max(0.0, (high - x) * (x - low)) / kDraws;
    }
    // Of the sum over the group: six standard deviations, and 2^-17 of a step for the grain of the numbers.
    ASSERT_LE(std::fabs(bias), 6 * std::sqrt(variance) + 128 * 0x1p-17 * 0.1);
  });
}

// Fact 14, for groups of any size: a tensor in pieces that are cut at groups has the bits of the whole.
TEST(MomentCodesTest, ShardsGiveTheSameBits) {
  for_all_formats([](const MomentFormat& format, MomentUse use) {
    const bool first = use == MomentUse::kFirst;
    const MomentFormat& format1 = first ? format : kPlain;
    const MomentFormat& format2 = first ? kPlain : format;
    const auto cut = static_cast<std::ptrdiff_t>(format.group);
    const std::vector<float> gradient = lognormal(2 * format.group + 7, 24);
    const std::vector<float> tail_gradient(gradient.begin() + cut, gradient.end());
    State whole(format1, format2, std::vector<float>(gradient.size()));
    State head(format1, format2, std::vector<float>(static_cast<std::size_t>(cut)));
    State tail(format1, format2, std::vector<float>(tail_gradient.size()));
    AdamWArgs args = args_of(kPlain, 3);
    args.moment1 = format1;
    args.moment2 = format2;
    run(whole, gradient, args);
    args.tensors = {tail.tensor(tail_gradient), head.tensor(gradient)};
    args.tensors[0].first_index = cut;
    cpu_kernels().adamw(args, {});
    const StoredMoment& all = first ? whole.m : whole.v;
    std::vector<std::uint8_t> joined = first ? head.m.data : head.v.data;
    const std::vector<std::uint8_t>& rest = first ? tail.m.data : tail.v.data;
    joined.insert(joined.end(), rest.begin(), rest.end());
    ASSERT_EQ(joined, all.data);
  });
}

}  // namespace
}  // namespace coat::kernels::test
