#include "worker/core/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"
#include "worker/core/base/error.h"
#include "worker/core/data/permutation.h"

namespace coat::data {
namespace {

using coat::testing::TemporaryFolder;
using ::testing::HasSubstr;

TEST(Permutation, IsOneForEveryCount) {
  for (const std::uint64_t count : std::vector<std::uint64_t>{1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097}) {
    const Permutation order(count, 7, 3);
    std::vector<bool> seen(count, false);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t value = order(i);
      ASSERT_LT(value, count);
      ASSERT_FALSE(seen[value]) << "count " << count << " position " << i;
      seen[value] = true;
    }
  }
}

TEST(Permutation, HoldsForLargeCounts) {
  const std::uint64_t count = (std::uint64_t{1} << 40) + 12345;
  const Permutation order(count, 1, 0);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_LT(order(i), count);
    ASSERT_TRUE(seen.insert(order(i)).second);
  }
}

std::vector<std::uint64_t> first(std::uint64_t count, std::uint64_t seed, std::uint64_t stream) {
  std::vector<std::uint64_t> values(count);
  const Permutation order(count, seed, stream);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = order(i);
  return values;
}

TEST(Permutation, DependsOnSeedAndStreamAlone) {
  EXPECT_EQ(first(100, 1, 0), first(100, 1, 0));
  EXPECT_NE(first(100, 1, 0), first(100, 2, 0));
  EXPECT_NE(first(100, 1, 0), first(100, 1, 1));
  EXPECT_NE(first(100, 1, 2), first(100, 2, 1));
}

// Far from the identity: a uniform permutation has one fixed point on average, and its mean distance |p(i) -
// i| is n/3 with standard deviation below n / (2 sqrt(n)); eight of those leave no room for chance.
TEST(Permutation, Mixes) {
  const std::uint64_t count = 10000;
  const std::vector<std::uint64_t> values = first(count, 5, 0);
  double distance = 0;
  int fixed = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    distance += std::abs(static_cast<double>(values[i]) - static_cast<double>(i));
    fixed += values[i] == i ? 1 : 0;
  }
  EXPECT_NEAR(distance / static_cast<double>(count), static_cast<double>(count) / 3, 8 * 50.0);
  EXPECT_LT(fixed, 12);
}

class TokenDatasetTest : public ::testing::Test {
 protected:
  TokenDatasetOptions options(std::int64_t tokens, std::int64_t length, std::uint64_t seed = 1) {
    std::string text(static_cast<std::size_t>(tokens), '\0');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
    return {.path = folder_.write("tokens", text), .sequence_length = length, .seed = seed};
  }
  TemporaryFolder folder_;
};

TEST_F(TokenDatasetTest, TargetsAreTheNextTokens) {
  const auto dataset = open_token_dataset(options(1000, 16));
  EXPECT_EQ(dataset->sequences_per_epoch(), 62);  // 999 targets in rows of 16
  const SequenceBatch batch = dataset->read(0, 5);
  ASSERT_EQ(batch.tokens.size(), 80u);
  ASSERT_EQ(batch.targets.size(), 80u);
  EXPECT_EQ(batch.counting_tokens(), 80);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t i = 0; i < 16; ++i) {
      const std::size_t at = row * 16 + i;
      if (i > 0) {
        EXPECT_EQ(batch.tokens[at], batch.targets[at - 1]);
      }
      EXPECT_EQ(batch.targets[at], (batch.tokens[at] + 1) % 251);
    }
  }
}

TEST_F(TokenDatasetTest, AnEpochHoldsEveryWindowOnceAndEpochsDiffer) {
  const auto dataset = open_token_dataset(options(241, 8));
  ASSERT_EQ(dataset->sequences_per_epoch(), 30);
  std::vector<std::vector<std::int32_t>> orders;
  for (int epoch = 0; epoch < 2; ++epoch) {
    const SequenceBatch all = dataset->read(epoch * 30, 30);
    std::vector<std::int32_t> starts;
    for (std::size_t row = 0; row < 30; ++row) starts.push_back(all.tokens[row * 8]);
    orders.push_back(starts);
    std::sort(starts.begin(), starts.end());
    for (std::size_t i = 0; i < 30; ++i) EXPECT_EQ(starts[i], static_cast<std::int32_t>(i * 8));
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST_F(TokenDatasetTest, AnyPositionIsFoundAlone) {
  const auto dataset = open_token_dataset(options(241, 8));
  const SequenceBatch all = dataset->read(0, 70);
  const auto again = open_token_dataset(options(241, 8));
  const SequenceBatch middle = again->read(25, 10);  // over the border of an epoch
  EXPECT_TRUE(std::equal(middle.tokens.begin(), middle.tokens.end(), all.tokens.begin() + 25 * 8));
  EXPECT_TRUE(std::equal(middle.targets.begin(), middle.targets.end(), all.targets.begin() + 25 * 8));
  EXPECT_NE(open_token_dataset(options(241, 8, 2))->read(0, 30).tokens, dataset->read(0, 30).tokens);
}

TEST_F(TokenDatasetTest, OneWindowIsEnoughAndLessIsNot) {
  EXPECT_EQ(open_token_dataset(options(17, 16))->sequences_per_epoch(), 1);
  try {
    open_token_dataset(options(16, 16));
    FAIL() << "16 tokens hold no target for the sixteenth";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds 16 tokens"));
    EXPECT_THAT(error.fix, HasSubstr("at most 15"));
  }
  EXPECT_THROW(check_token_data(options(16, 16)), DataError);
}

TEST_F(TokenDatasetTest, IdentityIsTheContent) {
  TokenDatasetOptions a = options(100, 8);
  const DataIdentity first_identity = open_token_dataset(a)->identity();
  a.path = folder_.write("moved", coat::testing::read_file(a.path));
  EXPECT_EQ(open_token_dataset(a)->identity(), first_identity);
  std::string changed = coat::testing::read_file(a.path);
  changed[50] ^= 1;
  folder_.write("moved", changed);
  EXPECT_NE(open_token_dataset(a)->identity(), first_identity);
}

TEST(SequenceBatch, CountsTheMask) {
  const SequenceBatch batch{
      .tokens = {1, 2, 3}, .targets = {2, 3, 4}, .mask = {1, 0, 1}, .sequences = 1, .length = 3};
  EXPECT_EQ(batch.counting_tokens(), 2);
}

}  // namespace
}  // namespace coat::data
