// Weights in BF16, with and without a residual, gradients in BF16, and steps that are skipped.
#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/optimizer_state.h"
#include "worker/core/quant/bf16.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::test {
namespace {

const MomentFormat kPlain{};
const MomentFormat kStochastic = moment_format(MomentCode::kE4M3, true, 128, Rounding::kStochastic);

// A parameter whose weights are not FP32.
struct ShortState {
  explicit ShortState(const std::vector<float>& initial, const MomentFormat& format = kPlain)
      : moments(format, initial), value(initial.size()), residual(initial.size()) {
    for (std::size_t i = 0; i < initial.size(); ++i) {
      const SplitWeight split = split_weight(initial[i]);
      value[i] = split.bf16;
      residual[i] = split.residual;
    }
  }
  AdamWTensor tensor(const std::vector<float>& gradient) {
    AdamWTensor tensor = moments.tensor(gradient);
    tensor.value = value.data();
    tensor.residual = residual.data();
    return tensor;
  }
  bool operator==(const ShortState&) const = default;

  State moments;  // its FP32 value is not used
  std::vector<std::uint16_t> value;
  std::vector<std::int8_t> residual;
};

void run(ShortState& state, const std::vector<float>& gradient, WeightFormat weights, AdamWArgs args) {
  args.weights = weights;
  args.tensors = {state.tensor(gradient)};
  cpu_kernels().adamw(args, {});
}

// Every step rounds the value to 24 bits: half a unit, 2^-16 of it, more than FP32 weights do.
TEST(AdamWWeightsTest, ResidualStaysWithinItsBoundOfFp32) {
  constexpr int kSteps = 30;
  std::vector<float> initial = normal_values(1000, 1, 0.02);
  State exact(kPlain, initial);
  ShortState kept(initial);
  for (std::size_t i = 0; i < initial.size(); ++i)
    exact.value[i] = join_weight(kept.value[i], kept.residual[i]);
  std::vector<double> largest(initial.size());
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = lognormal(1000, static_cast<std::uint32_t>(step) + 50);
    AdamWArgs args = args_of(kPlain, step);
    args.learning_rate = 1e-4f;
    run(exact, gradient, args);
    run(kept, gradient, WeightFormat::kBf16Residual, args);
    for (std::size_t i = 0; i < initial.size(); ++i) {
      largest[i] = std::max(largest[i], std::fabs(double{exact.value[i]}));
      const double value = join_weight(kept.value[i], kept.residual[i]);
      // The values may lie in neighbouring binades; decay only shrinks a difference.
      ASSERT_NEAR(value, double{exact.value[i]},
                  static_cast<double>(step) * 1.01 * largest[i] * (0x1p-16 + 0x1p-22))
          << i;
    }
  }
  EXPECT_EQ(kept.moments.m, exact.m) << "weights do not touch the moments";
}

// Updates far below a unit of BF16: rounding to nearest would lose all of them.
TEST(AdamWWeightsTest, StochasticRoundingIsUnbiased) {
  constexpr std::int64_t kCount = 40'000;
  constexpr int kSteps = 20;
  const std::vector<float> initial(kCount, 1.5f), gradient(kCount, 1e-3f);
  State exact(kPlain, initial);
  ShortState kept(initial);
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    AdamWArgs args = args_of(kPlain, step);
    args.learning_rate = 1e-5f;
    args.weight_decay = 0;
    run(exact, gradient, args);
    run(kept, gradient, WeightFormat::kBf16Stochastic, args);
  }
  double mean = 0;
  for (const std::uint16_t code : kept.value) mean += double{decode_bf16(code)} / kCount;
  // An element is a unit (2^-7) below 1.5 with the probability p of all its updates together.
  const double moved = 1.5 - double{exact.value[0]}, p = moved / 0x1p-7;
  EXPECT_NEAR(moved, kSteps * 1e-5, 1e-6);
  EXPECT_NEAR(1.5 - mean, moved, 5 * 0x1p-7 * std::sqrt(p / kCount) + kSteps * 0x1p-17 * 0x1p-7);
}

TEST(AdamWWeightsTest, StochasticRoundingTakesTheStreamOfTheWeight) {
  const std::vector<float> initial = normal_values(300, 2), gradient = lognormal(300, 3);
  ShortState kept(initial);
  std::vector<float> start;
  for (const std::uint16_t code : kept.value) start.push_back(decode_bf16(code));
  State exact(kPlain, start);
  AdamWArgs args = args_of(kPlain, 7);
  run(exact, gradient, args);
  args.weights = WeightFormat::kBf16Stochastic;
  args.tensors = {kept.tensor(gradient)};
  args.tensors[0].id = 5;
  args.tensors[0].first_index = 1023;
  cpu_kernels().adamw(args, {});
  const PhiloxStream random{args.seed, args.step, 5};
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const std::uint32_t bits = weight_rounding_bits(random.rounding_bits(1023 + i));
    ASSERT_EQ(kept.value[i], round_bf16_stochastic(exact.value[i], bits)) << i;
  }
}

TEST(AdamWWeightsTest, Bf16GradientsAreTheirValues) {
  const std::vector<float> initial = normal_values(1111, 4);
  std::vector<float> gradient = lognormal(1111, 5);
  std::vector<std::uint16_t> codes;
  for (float& g : gradient) {
    codes.push_back(encode_bf16(g));
    g = decode_bf16(codes.back());
  }
  for (const WeightFormat weights :
       {WeightFormat::kFp32, WeightFormat::kBf16Stochastic, WeightFormat::kBf16Residual}) {
    ShortState from_values(initial, kStochastic), from_codes(initial, kStochastic);
    State fp32_values(kStochastic, initial), fp32_codes(kStochastic, initial);
    const bool fp32 = weights == WeightFormat::kFp32;
    for (const bool bf16 : {false, true}) {
      AdamWArgs args = args_of(kStochastic, 1);
      args.weights = weights;
      args.gradient = bf16 ? Format::kBf16 : Format::kFp32;
      args.tensors = {fp32 ? (bf16 ? fp32_codes : fp32_values).tensor(gradient)
                           : (bf16 ? from_codes : from_values).tensor(gradient)};
      if (bf16) args.tensors[0].gradient = codes.data();
      cpu_kernels().adamw(args, {});
    }
    EXPECT_EQ(from_codes, from_values);
    EXPECT_EQ(fp32_codes, fp32_values);
  }
  AdamWArgs args = args_of(kPlain, 1);
  args.gradient = Format::kE4M3;
  EXPECT_THROW(cpu_kernels().adamw(args, {}), std::logic_error);
}

// A weight that nothing moves keeps its bits, in every format and over many steps.
TEST(AdamWWeightsTest, WithoutGradientAndDecayNothingMoves) {
  const std::vector<float> initial = normal_values(500, 6), gradient(500);
  for (const WeightFormat weights : {WeightFormat::kBf16Stochastic, WeightFormat::kBf16Residual}) {
    ShortState state(initial);
    const ShortState before = state;
    for (std::uint64_t step = 1; step <= 5; ++step) {
      AdamWArgs args = args_of(kPlain, step);
      args.weight_decay = 0;
      run(state, gradient, weights, args);
    }
    EXPECT_EQ(state, before);
  }
}

TEST(AdamWWeightsTest, AScaleOfNanSkipsTheStep) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> initial = normal_values(700, 7), gradient = lognormal(700, 8);
  for (const WeightFormat weights : {WeightFormat::kBf16Stochastic, WeightFormat::kBf16Residual}) {
    ShortState state(initial, kStochastic);
    run(state, gradient, weights, args_of(kStochastic, 1));
    const ShortState before = state;
    AdamWArgs args = args_of(kStochastic, 2);
    args.gradient_scale = &nan;
    run(state, gradient, weights, args);
    EXPECT_EQ(state, before);
    args.weights = weights;
    args.tensors = {state.tensor(gradient)};
    AdamWErrors errors;
    cpu_kernels().adamw_measured(args, &errors, {});
    EXPECT_EQ(state, before);
    EXPECT_EQ(errors.moment1.elements + errors.moment2.elements + errors.update.elements, 0);
  }
}

// The parts of a measured step that the moments' sums do not show: u, saturation, flushed values, k by
// buckets.
TEST(AdamWMeasuredTest, UpdateErrorAndHistogram) {
  const std::vector<float> initial = normal_values(1000, 9);
  std::vector<float> gradient = lognormal(1000, 10);
  gradient[5] = 3e30f;  // its square is more than FP32 holds
  MomentFormat plain = moment_format(MomentCode::kE4M3, false, 128, Rounding::kNearestEven);
  State state(kStochastic, plain, initial), exact(kPlain, initial);
  AdamWArgs args = args_of(kPlain, 1, 0.0, 0.0);
  args.bias_correction1 = args.bias_correction2 = 1;
  run(exact, gradient, args);
  args.moment1 = kStochastic;
  args.moment2 = plain;
  args.tensors = {state.tensor(gradient)};
  AdamWErrors errors;
  cpu_kernels().adamw_measured(args, &errors, {});
  double error = 0, squares = 0, flushed = 0;
  const std::vector<double> m = state.moment1(), v = state.moment2(), m0 = exact.moment1(),
                            v0 = exact.moment2();
  const double eps = args.eps;
  for (std::size_t i = 0; i < m.size(); ++i) {
    const double u = m[i] / (std::sqrt(v[i]) + eps), u0 = m0[i] / (std::sqrt(v0[i]) + eps);
    error += (u - u0) * (u - u0);
    squares += u0 * u0;
    flushed += v0[i] != 0 && v[i] == 0 ? 1 : 0;
  }
  EXPECT_NEAR(errors.update.error_squared / error, 1, 1e-9);
  EXPECT_NEAR(errors.update.reference_squared / squares, 1, 1e-9);
  EXPECT_EQ(errors.update.elements, 1000);
  EXPECT_GT(flushed, 0);
  EXPECT_EQ(errors.moment2.underflowed, flushed);
  EXPECT_EQ(errors.moment2.saturated, 1);
  EXPECT_EQ(errors.moment1.saturated, 0);
  std::array<double, kExponentBuckets> histogram{};
  for (const std::uint8_t row : state.m.row) histogram[exponent_bucket(row / 16.0)] += 1;
  EXPECT_EQ(errors.moment1.k_histogram, histogram);
  EXPECT_EQ(errors.moment2.k_groups, 0) << "it does not expand";
}

TEST(AdamWMeasuredTest, BucketsOfTheExponent) {
  EXPECT_EQ(exponent_bucket(0.125), 0u);
  EXPECT_EQ(exponent_bucket(0.5), 1u);
  EXPECT_EQ(exponent_bucket(2.9), 4u);
  EXPECT_EQ(exponent_bucket(12), kExponentBuckets - 1);
  EXPECT_EQ(exponent_bucket(255 / 16.0), kExponentBuckets - 1);
}

}  // namespace
}  // namespace coat::kernels::test
