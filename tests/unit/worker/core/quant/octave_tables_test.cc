#include "worker/core/quant/octave_tables.h"

#include <cmath>

#include <gtest/gtest.h>

namespace coat {
namespace {

class OctaveTablesTest : public ::testing::TestWithParam<int> {
 protected:
  // Where a group of that smallest ratio lands, by the table and by the search.
  void expect_the_searched_row(float ratio) {
    const int searched = choose_octave_row(OctaveRows::of(GetParam()).reach().data(), ratio);
    ASSERT_EQ(static_cast<int>(tables_.levels[tables_.level(ratio)].n), searched) << ratio;
  }
  const OctaveTables tables_ = OctaveTables::of(GetParam());
};

TEST_P(OctaveTablesTest, LevelsAreTheRowsOfTheSearch) {
  for (std::uint32_t bits = 0; bits < kOneBits; bits += 997) {
    expect_the_searched_row(std::bit_cast<float>(bits));
  }
  expect_the_searched_row(1.0f);
}

// Where a row begins, and the borders of buckets, to the bit.
TEST_P(OctaveTablesTest, BordersAreExact) {
  for (const float reach : OctaveRows::of(GetParam()).reach()) {
    expect_the_searched_row(reach);
    expect_the_searched_row(std::nextafter(reach, 2.0f) > 1 ? 1.0f : std::nextafter(reach, 2.0f));
    if (reach > 0) expect_the_searched_row(std::nextafter(reach, 0.0f));
  }
  for (std::uint32_t bucket = 1; bucket < OctaveTables::kBuckets; ++bucket) {
    const std::uint32_t lowest = bucket << OctaveTables::kBucketShift;
    expect_the_searched_row(std::bit_cast<float>(lowest));
    expect_the_searched_row(std::bit_cast<float>(lowest - 1));
  }
}

// The two products and sums that a kernel makes give octave_unstretched() and octave_position().
TEST_P(OctaveTablesTest, EntriesAreThoseOfTheCode) {
  const int top = GetParam();
  for (int n = octave_first_row(top); n <= kOctaveRows; ++n) {
    const OctaveDecoding& decoding = tables_.decoding[static_cast<std::size_t>(n)];
    for (int code = 1; code <= top; ++code) {
      const auto value = std::bit_cast<float>(decoding.base + octave_offset(decoding.step, code));
      const float relative = top == 127 ? value - std::bit_cast<float>(decoding.base) : value;
      ASSERT_EQ(relative, octave_unstretched(top, n, code)) << n << " " << code;
    }
    ASSERT_EQ(decoding.stretch, octave_tail(top, n).stretch);
  }
  for (const OctaveLevel& level : tables_.levels) {
    if (level.n == 0) continue;
    const int n = static_cast<int>(level.n);
    EXPECT_EQ(level.lowest, std::bit_cast<float>(octave_floor(top, n)));
    for (float y = 1.0f; y > std::fmax(level.lowest, 1e-30f); y *= 0.97f) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(y) * (2 * level.n) + level.base, octave_position(top, n, y));
    }
    EXPECT_EQ(level.base & 0xFFFFFFu, 0u) << "a random number fits below it";
  }
}

INSTANTIATE_TEST_SUITE_P(Tops, OctaveTablesTest, ::testing::Values(127, 255));

}  // namespace
}  // namespace coat
