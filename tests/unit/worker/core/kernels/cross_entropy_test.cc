#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"

namespace coat::kernels::test {
namespace {

constexpr float kGradientScale = 0.125f;

std::vector<std::int32_t> targets_of(std::int64_t rows, std::int64_t vocab) {
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < rows; ++row)
    targets.push_back(static_cast<std::int32_t>(row * 31 % vocab));
  return targets;
}

TEST(CrossEntropyTest, LossAndGradientMatchFp64) {
  struct Shape {
    std::int64_t rows, vocab;
  };
  for (const Shape& shape : {Shape{1, 1}, Shape{17, 2}, Shape{129, 256}, Shape{1000, 17}, Shape{3, 50'257}}) {
    const std::vector<float> values = normal_values(shape.rows * shape.vocab, 1, 4);
    const std::vector<std::int32_t> targets = targets_of(shape.rows, shape.vocab);
    OwnedMatrix logits = make_matrix(values, kFp32, shape.rows, shape.vocab);
    double loss = 2.0;
    cpu_kernels().cross_entropy({.logits = logits.view(),
                                 .targets = targets.data(),
                                 .mask = nullptr,
                                 .gradient_scale = kGradientScale,
                                 .loss_sum = &loss},
                                {});
    double expected = 2.0;
    // Lanes of vocab / 16 positive terms, the exponential's 2 ulp and the difference it is taken of.
    const double fp32_error = (static_cast<double>(shape.vocab) / 16 + 48) * 0x1p-24;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const float* in = values.data() + row * shape.vocab;
      const double largest = *std::max_element(in, in + shape.vocab);
      double sum = 0;
      for (std::int64_t i = 0; i < shape.vocab; ++i) sum += std::exp(double{in[i]} - largest);
      const std::int32_t target = targets[static_cast<std::size_t>(row)];
      expected += std::log(sum) + largest - double{in[target]};
      for (std::int64_t i = 0; i < shape.vocab; ++i) {
        const double probability = std::exp(double{in[i]} - largest) / sum;
        const double exact = (probability - (i == target ? 1 : 0)) * double{kGradientScale};
        const double found = logits.floats()[row * shape.vocab + i];
        ASSERT_NEAR(found, exact,
                    double{kGradientScale} * (probability * fp32_error + (i == target) * 0x1p-23));
      }
    }
    EXPECT_NEAR(loss, expected, static_cast<double>(shape.rows) * fp32_error);
  }
}

TEST(CrossEntropyTest, MaskedRowsCountForNothing) {
  const std::vector<float> values = normal_values(40 * 16, 2);
  const std::vector<std::int32_t> targets = targets_of(40, 16);
  std::vector<float> mask(40);
  for (std::size_t row = 0; row < 40; row += 3) mask[row] = 1.0f;
  OwnedMatrix some = make_matrix(values, kFp32, 40, 16), all = some;
  double some_loss = 0, all_loss = 0;
  CrossEntropyArgs args{.logits = some.view(),
                        .targets = targets.data(),
                        .mask = mask.data(),
                        .gradient_scale = 1.0f,
                        .loss_sum = &some_loss};
  cpu_kernels().cross_entropy(args, {});
  args.logits = all.view();
  args.mask = nullptr;
  args.loss_sum = &all_loss;
  cpu_kernels().cross_entropy(args, {});
  for (std::size_t row = 0; row < 40; ++row) {
    for (std::size_t i = row * 16; i < row * 16 + 16; ++i) {
      ASSERT_EQ(some.floats()[i], mask[row] == 0.0f ? 0.0f : all.floats()[i]);
    }
  }
  EXPECT_GT(some_loss, 0);
  EXPECT_LT(some_loss, all_loss);
  std::fill(mask.begin(), mask.end(), 0.0f);
  double none = 0;
  args.mask = mask.data();
  args.loss_sum = &none;
  cpu_kernels().cross_entropy(args, {});
  EXPECT_EQ(none, 0.0);
}

TEST(CrossEntropyTest, IsInvariantToAShiftAndSurvivesLargeLogits) {
  const OwnedMatrix base = make_matrix({100, 101, 99, 1000, -1000, 0}, kFp32, 2, 3);
  OwnedMatrix logits = base;
  const std::vector<std::int32_t> targets = {1, 0};
  double loss = 0;
  cpu_kernels().cross_entropy({.logits = logits.view(),
                               .targets = targets.data(),
                               .mask = nullptr,
                               .gradient_scale = 1.0f,
                               .loss_sum = &loss},
                              {});
  EXPECT_NEAR(loss, std::log(std::exp(-1) + 1 + std::exp(-2)), 1e-6);
  EXPECT_EQ(logits.floats()[3], 0.0f);
}

TEST(CrossEntropyTest, NanIsVisibleAndBadTargetsAreRefused) {
  OwnedMatrix logits = make_matrix({1, std::numeric_limits<float>::quiet_NaN(), 2}, kFp32, 1, 3);
  std::vector<std::int32_t> targets = {0};
  double loss = 0;
  CrossEntropyArgs args{.logits = logits.view(),
                        .targets = targets.data(),
                        .mask = nullptr,
                        .gradient_scale = 1.0f,
                        .loss_sum = &loss};
  cpu_kernels().cross_entropy(args, {});
  EXPECT_TRUE(std::isnan(loss));
  for (const std::int32_t bad : {-1, 3}) {
    targets[0] = bad;
    EXPECT_THROW(cpu_kernels().cross_entropy(args, {}), std::logic_error);
  }
}

}  // namespace
}  // namespace coat::kernels::test
