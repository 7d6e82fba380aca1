#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

#include "worker/core/quant/moment_table.h"
#include "worker/core/quant/octave_rows.h"

namespace coat {
namespace {

constexpr int kTops[] = {127, 255};

// amax times 2^-(whole octaves), less the fraction of an octave at equal distances.
double exact_value(int top, int n, int code) {
  const double octaves = static_cast<double>(top - code) / n, whole = std::floor(octaves);
  return std::ldexp(1.0 - (octaves - whole) / 2.0, -static_cast<int>(whole));
}

// The lowest octaves of rows below 3 are subnormal in FP32, whose distances are others.
int lowest_normal(int top, int n) { return std::max(1, top - 120 * n); }

// y for a ratio: what the position is found of.
float y_of(int top, int n, float ratio) {
  const OctaveTail tail = octave_tail(top, n);
  return std::fma(ratio, tail.rest, tail.start);
}

double exact_magnitude(int top, int n, int code) {
  // 127 octaves below 1 FP32 has no octave left.
  const double value = exact_value(top, n, code), start = n == 1 ? 0 : exact_value(top, n, 0);
  return top == 127 ? (value - start) / (1 - start) : value;
}

TEST(OctaveCodeTest, ValuesAreThoseOfTheDefinitionAndTheirOwnCodes) {
  for (const int top : kTops) {
    for (int n = octave_first_row(top); n <= kOctaveRows; ++n) {
      EXPECT_EQ(octave_value(top, n, 0), 0.0f);
      EXPECT_EQ(octave_value(top, n, top), 1.0f);
      for (int code = lowest_normal(top, n); code <= top; ++code) {
        const float value = octave_value(top, n, code);
        EXPECT_GT(value, octave_value(top, n, code - 1));
        // A difference of floats near `start` shows their units: 2^-21 of it in all.
        const double unit = 0x1p-21 * (exact_magnitude(top, n, code) + exact_value(top, n, 0) * 2);
        EXPECT_NEAR(value, exact_magnitude(top, n, code), unit) << top << " " << n << " " << code;
        ASSERT_EQ(nearest_octave_code(top, n, y_of(top, n, value)), code) << top << " " << n;
      }
    }
  }
}

TEST(OctaveCodeTest, CodesWithSignsUnderflowGradually) {
  for (int code = 0; code <= 127; ++code) {
    EXPECT_NEAR(octave_value(127, 127, code), code / 127.0, 1e-6) << "linear where n is largest";
  }
  for (const int n : {8, 20, 50}) {  // equal distances within the lowest octave
    const float first = octave_value(127, n, 1);
    const int border = 127 % n;  // of octaves, above code 0
    for (int code = 1; code <= border; ++code) {
      EXPECT_NEAR(octave_value(127, n, code) / first, code, 1e-3) << n;
    }
  }
}

TEST(OctaveCodeTest, ZeroAndAmaxAreExactWhateverIsDrawn) {
  for (const int top : kTops) {
    for (int n = octave_first_row(top); n <= kOctaveRows; ++n) {
      const float zero = y_of(top, n, 0.0f), one = y_of(top, n, 1.0f);
      for (const std::uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) {
        EXPECT_EQ(stochastic_octave_code(top, n, zero, random), 0) << top << " " << n << " " << random;
        EXPECT_EQ(stochastic_octave_code(top, n, one, random), top);
      }
      EXPECT_EQ(nearest_octave_code(top, n, zero), 0);
    }
  }
}

TEST(OctaveCodeTest, TheRowIsTheFinestUpToWhichAllReachTheSmallest) {
  for (const int top : kTops) {
    const float* reach = OctaveRows::of(top).reach().data();
    for (float smallest = 1.0f; smallest > 1e-25f; smallest *= 0.9963f) {
      const int row = choose_octave_row(reach, smallest);
      for (int n = octave_first_row(top); n <= row; ++n) {
        EXPECT_GE(stochastic_octave_code(top, n, y_of(top, n, smallest), 0), 1) << top << " " << smallest;
      }
      if (row < kOctaveRows) {
        EXPECT_EQ(stochastic_octave_code(top, row + 1, y_of(top, row + 1, smallest), 0), 0)
            << top << " " << smallest;
      }
    }
    EXPECT_EQ(choose_octave_row(reach, 1.0f), kOctaveRows);
    EXPECT_EQ(choose_octave_row(reach, 0.0f), octave_first_row(top)) << "smaller than FP32 can hold";
    EXPECT_EQ(octave_row_used(top, 255), kOctaveRows) << "what a group of zeros stores";
  }
}

// y from the magnitude itself, as encoders have it, lies at most a few units above that of the ratio, never
// below, so that a group's smallest keeps its code; and amax is exact.
TEST(OctaveCodeTest, MagnitudesAreAtLeastTheirRatios) {
  std::mt19937 random(5);
  for (const int top : kTops) {
    for (int n = octave_first_row(top); n <= kOctaveRows; ++n) {
      const OctaveTail tail = octave_tail(top, n);
      for (int i = 0; i < 2000; ++i) {
        // Any mantissa, and exponents from those of subnormal numbers on.
        const auto amax = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 0x7F800000u) | 1u);
        const RatioScale scale = ratio_scale(amax);
        const float slope = octave_slope(scale.inverse, tail.rest);
        // Half a unit of the last place of the slope, which is subnormal where amax is above 2^126: two
        // units, and one half each for the roundings of slope, ratio and both sums.
        const float unit = std::fmax(0x1p-24f, 0x1p-149f / slope);
        const auto y_of_magnitude = [&](float magnitude) {
          return std::fmin(std::fma(magnitude * scale.up, slope, tail.start), 1.0f);
        };
        ASSERT_EQ(y_of_magnitude(amax), 1.0f) << top << " " << n << " " << amax;
        const float magnitude = amax * octave_value(top, n, i % (top + 1)),
                    y = y_of(top, n, ratio_of(magnitude, scale));
        ASSERT_GE(y_of_magnitude(magnitude), y) << top << " " << n << " " << amax << " " << magnitude;
        ASSERT_LE(y_of_magnitude(magnitude), y * (1 + 8 * unit)) << top << " " << n << " " << amax;
      }
    }
  }
}

// The border itself, to the bit.
TEST(OctaveCodeTest, ReachIsTheSmallestRatioWithACode) {
  for (const int top : kTops) {
    const auto& reach = OctaveRows::of(top).reach();
    for (int n = octave_first_row(top) + 1; n <= kOctaveRows; ++n) {
      const float here = reach[static_cast<std::size_t>(n)], below = reach[static_cast<std::size_t>(n - 1)];
      ASSERT_GE(here, below);
      if (here == below) continue;
      EXPECT_GE(stochastic_octave_code(top, n, y_of(top, n, here), 0), 1) << top << " " << n;
      EXPECT_EQ(stochastic_octave_code(top, n, y_of(top, n, std::nextafter(here, 0.0f)), 0), 0);
    }
  }
}

// The mean over all draws is the value itself, to half a 2^-16th of the distance between neighbours, also
// across the border of an octave.
TEST(OctaveCodeTest, StochasticRoundingIsUnbiasedInTheValueDomain) {
  for (const int top : kTops) {
    for (const int n : {3, 7, 12, 33, 127}) {
      for (const double x : {1.0 - 0x1p-20, 0.9, 0.700001, 0.5001, 0.49999, 0.3, 0.2500003, 0.26}) {
        const auto ratio = static_cast<float>(x);
        if (ratio < octave_value(top, n, 1)) continue;
        const float y = y_of(top, n, ratio);
        const int low = stochastic_octave_code(top, n, y, 0);
        std::int64_t ups = 0;
        for (std::uint32_t random = 0; random < 0x10000; ++random) {
          ups += stochastic_octave_code(top, n, y, random) - low;
        }
        const double lower = octave_value(top, n, low), step = octave_value(top, n, low + 1) - lower;
        EXPECT_NEAR(lower + step * static_cast<double>(ups) / 0x10000, ratio, step * 0x1p-15 + 0x1p-23)
            << n << " " << x;
      }
    }
  }
}

TEST(OctaveCodeTest, NearestIsNearest) {
  for (const int top : kTops) {
    for (const int n : {5, 16, 100}) {
      for (float ratio = 1.0f; ratio > 0.01f && ratio > octave_value(top, n, 1); ratio *= 0.99977f) {
        const int code = nearest_octave_code(top, n, y_of(top, n, ratio));
        const double mine = std::fabs(octave_value(top, n, code) - ratio);
        EXPECT_LE(mine, std::fabs(octave_value(top, n, code - 1) - ratio) * (1 + 1e-6) + 1e-9);
        if (code < top) {
          EXPECT_LE(mine, std::fabs(octave_value(top, n, code + 1) - ratio) * (1 + 1e-6) + 1e-9);
        }
      }
    }
  }
}

}  // namespace
}  // namespace coat
