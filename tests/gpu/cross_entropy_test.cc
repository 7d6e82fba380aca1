#include <cmath>

#include "tests/gpu/paired.h"

namespace coat::gpu_test {
namespace {

using CrossEntropyTest = GpuTest;

// The gradient has the twin's bits. The loss of a row differs by the logarithm alone, which is within 1 unit
// of FP64's last place on both sides, and rows are added in the same order.
void expect_same_loss(Paired<double>& loss_sum, std::int64_t rows) {
  const double cpu = loss_sum.host()[0], cuda = loss_sum.from_device()[0];
  const double bound = 4e-16 * (std::fabs(cpu) + 20.0 * static_cast<double>(rows));
  EXPECT_NEAR(cpu, cuda, bound);
}

TEST_F(CrossEntropyTest, LossAndGradient) {
  for (const Shape& shape : {Shape{1, 256}, Shape{17, 257}, Shape{129, 32000}, Shape{33, 50257},
                             Shape{1000, 256}, Shape{5, 1}, Shape{3, 7}, Shape{9, 128256}}) {
    for (const bool masked : {false, true}) {
      SCOPED_TRACE(describe(shape) + (masked ? ", masked" : ""));
      PairedMatrix logits(kFp32, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
      Paired<std::int32_t> targets(indices(shape.rows, static_cast<std::int32_t>(shape.cols), 2));
      std::vector<float> ones;
      for (const std::int32_t bit : indices(shape.rows, 2, 3)) ones.push_back(static_cast<float>(bit));
      Paired<float> mask(ones);
      Paired<double> loss_sum(std::vector<double>{1.25});
      cpu().cross_entropy(
          {logits.host(), targets.host(), masked ? mask.host() : nullptr, 1.0f / 777, loss_sum.host()}, {});
      cuda().cross_entropy({logits.device(), targets.device(), masked ? mask.device() : nullptr, 1.0f / 777,
                            loss_sum.device()},
                           {});
      EXPECT_TRUE(same_bits(logits));
      expect_same_loss(loss_sum, shape.rows);
    }
  }
}

TEST_F(CrossEntropyTest, ExtremeLogits) {
  std::vector<float> logits_values = values(64 * 512, Fill::kSpread, 1);
  for (std::size_t i = 0; i < logits_values.size(); ++i) logits_values[i] *= i % 3 == 0 ? 1e4f : 1e-4f;
  PairedMatrix logits(kFp32, 64, 512, logits_values);
  Paired<std::int32_t> targets(indices(64, 512, 2));
  Paired<double> loss_sum(std::vector<double>{0});
  cpu().cross_entropy({logits.host(), targets.host(), nullptr, 1.0f, loss_sum.host()}, {});
  cuda().cross_entropy({logits.device(), targets.device(), nullptr, 1.0f, loss_sum.device()}, {});
  EXPECT_TRUE(same_bits(logits));
  EXPECT_NEAR(loss_sum.host()[0], loss_sum.from_device()[0], 1e-15 * loss_sum.host()[0]);
}

TEST_F(CrossEntropyTest, NonFiniteLogitsAndStrangeTargetsShowInTheLoss) {
  std::vector<float> logits_values(2 * 16, 0.5f);
  logits_values[5] = NAN;
  PairedMatrix logits(kFp32, 2, 16, logits_values), ordinary(kFp32, 2, 16, std::vector<float>(32, 0.5f));
  Paired<std::int32_t> targets(std::vector<std::int32_t>{1, 2}), strange(std::vector<std::int32_t>{1, 16});
  Paired<double> nan_loss(std::vector<double>{0}), strange_loss(std::vector<double>{0});
  cuda().cross_entropy({logits.device(), targets.device(), nullptr, 1.0f, nan_loss.device()}, {});
  cuda().cross_entropy({ordinary.device(), strange.device(), nullptr, 1.0f, strange_loss.device()}, {});
  EXPECT_TRUE(std::isnan(nan_loss.from_device()[0]));
  EXPECT_TRUE(std::isnan(strange_loss.from_device()[0]));
  EXPECT_TRUE(ordinary.guards_are_intact());
}

}  // namespace
}  // namespace coat::gpu_test
