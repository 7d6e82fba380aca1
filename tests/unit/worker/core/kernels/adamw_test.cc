#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/optimizer_state.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::test {
namespace {

const MomentFormat kPlain{};
const MomentFormat kNearest = moment_format(MomentCode::kE4M3, true, 128, Rounding::kNearestEven);
const MomentFormat kStochastic = moment_format(MomentCode::kE4M3, true, 128, Rounding::kStochastic);

TEST(AdamWKernelTest, Fp32MomentsFollowTheFormulaInFp64) {
  for (const std::int64_t count : {1, 17, 129, 1000, 20'000}) {
    State state(kPlain, normal_values(count, 1));
    std::vector<double> p(state.value.begin(), state.value.end()), m(p.size()), v(p.size());
    for (std::uint64_t step = 1; step <= 20; ++step) {
      const std::vector<float> gradient = normal_values(count, static_cast<std::uint32_t>(step) + 10, 0.1);
      const AdamWArgs args = args_of(kPlain, step);
      run(state, gradient, args);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double g = gradient[i], b1 = args.beta1, b2 = args.beta2;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        const double denominator =
            (std::sqrt(v[i] / args.bias_correction2) + double{args.eps}) * args.bias_correction1;
        p[i] -= double{args.learning_rate} * (m[i] / denominator + double{args.weight_decay} * p[i]);
      }
    }
    const std::vector<double> moment1 = state.moment1();
    for (std::size_t i = 0; i < p.size(); ++i) {
      // Each step adds a few roundings of p and of an update of lr at most about 1.
      ASSERT_NEAR(double{state.value[i]}, p[i], 20 * (2 * std::fabs(p[i]) + 0.2) * 0x1p-24);
      ASSERT_NEAR(moment1[i], m[i], 20 * 4 * 0x1p-24 * 0.5);
    }
  }
}

// The step's size lies in the denominator, which must neither be zero nor infinite before it should.
// The update has about seven roundings, the value two.
TEST(AdamWKernelTest, LearningRatesFromZeroToOne) {
  std::vector<float> initial = normal_values(1000, 5);
  initial[3] = 0.0f;
  const std::vector<float> gradient = normal_values(1000, 6);
  for (const float rate : {0.0f, 0x1p-149f, 1e-38f, 1e-30f, 1e-12f, 1.0f}) {
    State state(kPlain, initial);
    AdamWArgs args = args_of(kPlain, 1);
    args.learning_rate = rate;
    run(state, gradient, args);
    if (rate == 0.0f) {
      EXPECT_EQ(state.value, initial) << "nothing is learnt";
    }
    for (std::size_t i = 0; i < initial.size(); ++i) {
      const double g = gradient[i], p = initial[i];
      const double exact = p - double{rate} * (g / (std::fabs(g) + 1e-8) + 0.1 * p);
      ASSERT_NEAR(double{state.value[i]}, exact, (2 * std::fabs(p) + 8.0 * double{rate}) * 0x1p-24 + 0x1p-125)
          << rate << " " << i;
    }
  }
}

// COAT.md 5.2 fact 11: quantization changes only what is kept for the next step.
TEST(AdamWKernelTest, TheFirstStepDoesNotDependOnTheFormat) {
  const std::vector<float> initial = normal_values(1000, 2), gradient = lognormal(1000, 3);
  State plain(kPlain, initial), nearest(kNearest, initial), stochastic(kStochastic, initial);
  run(plain, gradient, args_of(kPlain, 1));
  run(nearest, gradient, args_of(kNearest, 1));
  run(stochastic, gradient, args_of(kStochastic, 1));
  EXPECT_EQ(nearest.value, plain.value);
  EXPECT_EQ(stochastic.value, plain.value);
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const double g = gradient[i], p = initial[i];
    const double exact = p - 1e-2 * (g / (std::fabs(g) + 1e-8) + 0.1 * p);
    ASSERT_NEAR(double{plain.value[i]}, exact, (2 * std::fabs(p) + 0.1) * 0x1p-24);
  }
}

// Facts 5 and 17: signs, order, no zero that was none, the largest value exactly.
TEST(AdamWKernelTest, StoredMomentsKeepWhatMatters) {
  for (const MomentFormat& format : {kNearest, kStochastic}) {
    for (const std::int64_t count : {1, 17, 128, 129, 1000}) {
      std::vector<float> values = lognormal(count, 4);
      if (count > 1) values[0] = 0.0f;
      if (count > 100) values[99] = -0.0f;
      State state(format, std::vector<float>(values.size()));
      store_values(state, values);
      const std::vector<double> stored = state.moment1(), squares = state.moment2();
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double x = values[i];
        ASSERT_EQ(x == 0, stored[i] == 0) << i;
        ASSERT_EQ(x == 0, squares[i] == 0) << i;
        ASSERT_EQ(x < 0, stored[i] < 0) << i;
        ASSERT_GE(squares[i], 0) << i;
        if (std::fabs(values[i]) == state.m.amax[i / 128]) {
          ASSERT_EQ(stored[i], x);
        }
        ASSERT_NEAR(stored[i] / (x == 0 ? 1 : x), x == 0 ? 0 : 1, 0.35) << i;
      }
    }
  }
}

// The kernel's code is that of the header, for a group of any length.
TEST(AdamWKernelTest, StoresTheNearestCode) {
  const std::vector<float> values = lognormal(300, 5);
  State state(kNearest, std::vector<float>(values.size()));
  store_values(state, values);
  for (std::size_t first = 0; first < values.size(); first += 128) {
    const std::size_t end = std::min(values.size(), first + 128);
    float amax = 0, amin = std::numeric_limits<float>::infinity();
    for (std::size_t i = first; i < end; ++i) {
      amax = std::max(amax, std::fabs(values[i]));
      amin = std::min(amin, std::fabs(values[i]));
    }
    const int row = RowChoice(kNearest).row(amax, amin);
    ASSERT_EQ(state.m.amax[first / 128], amax);
    ASSERT_EQ(state.m.row[first / 128], row);
    for (std::size_t i = first; i < end; ++i) {
      const int code =
          nearest_code<7>(MomentTable::of(MomentCode::kE4M3).boundaries(row), std::fabs(values[i]) / amax);
      ASSERT_EQ(state.m.data[i], code | (values[i] < 0 ? 0x80 : 0));
    }
  }
}

// The random numbers are those of PhiloxStream, also for a shard that does not start at a multiple of four.
TEST(AdamWKernelTest, RoundsWithTheStreamOfItsParameterAndIndex) {
  const std::vector<float> values = lognormal(200, 6);
  State state(kStochastic, std::vector<float>(values.size()));
  AdamWArgs args = args_of(kStochastic, 9, 0.0, 0.0);
  args.bias_correction1 = args.bias_correction2 = 1;
  args.tensors = {state.tensor(values)};
  args.tensors[0].id = 12;
  args.tensors[0].first_index = 1281;
  cpu_kernels().adamw(args, {});
  const PhiloxStream random{args.seed, args.step, 12};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float* row = MomentTable::of(MomentCode::kE4M3).values(state.m.row[i / 128]);
    const float ratio = std::fabs(values[i]) / state.m.amax[i / 128];
    const float uniform = rounding_uniform(random.rounding_bits(1281 + i));
    ASSERT_EQ(state.m.data[i] & 0x7F, stochastic_code<7>(row, 126, ratio, uniform)) << i;
  }
}

// Fact 13, second half, and fact 16.
TEST(AdamWKernelTest, ZeroGroupsStayZeroAndConstantGroupsAreExact) {
  State zero(kStochastic, normal_values(300, 7));
  const State before = zero;
  for (std::uint64_t step = 1; step <= 5; ++step)
    run(zero, std::vector<float>(300), args_of(kStochastic, step));
  EXPECT_EQ(zero.m, before.m);
  EXPECT_EQ(zero.v, before.v);
  for (std::size_t i = 0; i < 300; ++i) {
    ASSERT_NEAR(double{zero.value[i]}, double{before.value[i]} * std::pow(1 - 1e-3, 5), 1e-6);
  }
  State constant(kStochastic, std::vector<float>(130));
  store_values(constant, std::vector<float>(130, -3.3e-7f));
  for (const double value : constant.moment1()) ASSERT_EQ(value, double{-3.3e-7f});
  for (const double value : constant.moment2()) ASSERT_EQ(value, double{3.3e-7f * 3.3e-7f});
}

// Fact 13: without gradients the second moment decays by beta2 in the mean.
TEST(AdamWKernelTest, SecondMomentDecaysInTheMean) {
  constexpr int kSteps = 150;
  State state(kStochastic, std::vector<float>(128 * 60));
  store_values(state, lognormal(128 * 60, 8));
  const std::vector<double> start = state.moment2();
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    run(state, std::vector<float>(start.size()), args_of(kStochastic, step, 0.9, 0.99));
  }
  const double decay = std::pow(double{0.99f}, kSteps);
  const std::vector<double> end = state.moment2();
  double ratio_sum = 0;
  for (std::size_t i = 0; i < start.size(); ++i) ratio_sum += end[i] / (start[i] * decay);
  EXPECT_NEAR(ratio_sum / static_cast<double>(start.size()), 1.0, 0.03);
  for (const float value : state.value) ASSERT_TRUE(std::isfinite(value));
}

// COAT.md 5.4, staleness: gradients of a tenth of the elements shrink tenfold; three time constants later
// their second moments have followed with stochastic rounding, and are stuck far above with rounding to
// nearest.
TEST(AdamWKernelTest, SecondMomentFollowsShrinkingGradients) {
  constexpr double kBeta2 = 0.999;
  constexpr int kCount = 128 * 10, kWarm = 1000, kShrunk = 3000;
  State plain(kPlain, std::vector<float>(kCount)), nearest(kNearest, std::vector<float>(kCount)),
      stochastic(kStochastic, std::vector<float>(kCount));
  for (std::uint64_t step = 1; step <= kWarm + kShrunk; ++step) {
    std::vector<float> gradient = normal_values(kCount, static_cast<std::uint32_t>(step), 1e-3);
    if (step > kWarm) {
      for (std::size_t i = 0; i < gradient.size(); i += 10) gradient[i] *= 0.1f;
    }
    for (State* state : {&plain, &nearest, &stochastic})
      run(*state, gradient, args_of(state->v.format, step, 0.9, kBeta2));
  }
  double nearest_ratio = 0, stochastic_ratio = 0;
  const std::vector<double> exact = plain.moment2(), near = nearest.moment2(), mean = stochastic.moment2();
  for (std::size_t i = 0; i < exact.size(); i += 10) {
    nearest_ratio += near[i] / exact[i] / (kCount / 10);
    stochastic_ratio += mean[i] / exact[i] / (kCount / 10);
  }
  EXPECT_NEAR(stochastic_ratio, 1.0, 0.1);
  EXPECT_GT(nearest_ratio, 3.0);
}

// Fact 14.
TEST(AdamWKernelTest, ShardsCutAtGroupsGiveTheSameBits) {
  const std::vector<float> initial = normal_values(1000, 9);
  State whole(kStochastic, initial);
  State head(kStochastic, {initial.begin(), initial.begin() + 384});
  State tail(kStochastic, {initial.begin() + 384, initial.end()});
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const std::vector<float> gradient = lognormal(1000, static_cast<std::uint32_t>(step));
    const std::vector<float> second(gradient.begin() + 384, gradient.end());
    run(whole, gradient, args_of(kStochastic, step));
    AdamWArgs args = args_of(kStochastic, step);
    args.tensors = {head.tensor(gradient), tail.tensor(second)};
    args.tensors[1].first_index = 384;
    cpu_kernels().adamw(args, {});
  }
  const auto joined = [](auto first, const auto& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  EXPECT_EQ(joined(head.value, tail.value), whole.value);
  EXPECT_EQ(joined(head.m.data, tail.m.data), whole.m.data);
  EXPECT_EQ(joined(head.v.data, tail.v.data), whole.v.data);
  EXPECT_EQ(joined(head.v.amax, tail.v.amax), whole.v.amax);
  EXPECT_EQ(joined(head.v.row, tail.v.row), whole.v.row);
}

TEST(AdamWKernelTest, MeasuredStepIsTheSameStepAndItsSumsAreTheErrors) {
  const std::vector<float> initial = normal_values(1000, 10), gradient = lognormal(1000, 11);
  State measured(kStochastic, initial), plain(kStochastic, initial), exact(kPlain, initial);
  run(plain, gradient, args_of(kStochastic, 1));
  run(exact, gradient, args_of(kPlain, 1));
  AdamWArgs args = args_of(kStochastic, 1);
  args.tensors = {measured.tensor(gradient)};
  AdamWErrors errors;
  cpu_kernels().adamw_measured(args, &errors, {});
  EXPECT_EQ(measured, plain);
  const auto check = [](const ErrorSums& sums, const std::vector<double>& stored,
                        const std::vector<double>& wanted, const std::vector<std::uint8_t>& rows) {
    double error = 0, squares = 0, k_sum = 0;
    for (std::size_t i = 0; i < stored.size(); ++i) {
      error += std::pow(stored[i] - wanted[i], 2);
      squares += std::pow(wanted[i], 2);
    }
    for (const std::uint8_t row : rows) k_sum += row / 16.0;
    EXPECT_NEAR(sums.error_squared / error, 1, 1e-9);
    EXPECT_NEAR(sums.reference_squared / squares, 1, 1e-9);
    EXPECT_EQ(sums.elements, 1000);
    EXPECT_EQ(sums.underflowed, 0);
    EXPECT_EQ(sums.k_groups, 8);
    EXPECT_EQ(sums.k_sum, k_sum);
  };
  check(errors.moment1, measured.moment1(), exact.moment1(), measured.m.row);
  check(errors.moment2, measured.moment2(), exact.moment2(), measured.v.row);
}

TEST(AdamWKernelTest, ClippingFactorAndDecayFlag) {
  const std::vector<float> initial = normal_values(200, 12), gradient = lognormal(200, 13);
  std::vector<float> quarter = gradient;
  for (float& g : quarter) g *= 0.25f;
  State scaled(kPlain, initial), expected(kPlain, initial);
  const float factor = 0.25f;
  AdamWArgs args = args_of(kPlain, 1);
  args.gradient_scale = &factor;
  run(scaled, gradient, args);
  run(expected, quarter, args_of(kPlain, 1));
  EXPECT_EQ(scaled, expected);
  State kept(kPlain, initial), decayless(kPlain, initial);
  args = args_of(kPlain, 1);
  args.tensors = {kept.tensor(gradient)};
  args.tensors[0].decay = false;
  cpu_kernels().adamw(args, {});
  args = args_of(kPlain, 1);
  args.weight_decay = 0;
  run(decayless, gradient, args);
  EXPECT_EQ(kept, decayless);
}

TEST(AdamWKernelTest, MixedFormatsAndEmptyTensors) {
  const std::vector<float> initial = normal_values(700, 14), gradient = lognormal(700, 15);
  MomentFormat small = kNearest;
  small.group = 24;
  State plain(kPlain, initial), m_state(small, initial), v_state(kNearest, initial);
  AdamWArgs args = args_of(kPlain, 1);
  args.moment1 = small;
  args.moment2 = kNearest;
  AdamWTensor tensor = m_state.tensor(gradient);
  tensor.v = v_state.tensor(gradient).v;
  args.tensors = {{}, tensor, {}};
  cpu_kernels().adamw(args, {});
  State m_alone(small, initial), v_alone(kNearest, initial);
  run(m_alone, gradient, args_of(small, 1));
  run(v_alone, gradient, args_of(kNearest, 1));
  EXPECT_EQ(m_state.m, m_alone.m);
  EXPECT_EQ(v_state.v, v_alone.v);
  EXPECT_EQ(m_state.value, m_alone.value);
  args.moment1.code = MomentCode::kDe8Unsigned;
  EXPECT_THROW(cpu_kernels().adamw(args, {}), std::logic_error);
  args.moment1 = kNearest;
  args.moment1.group = 0;
  EXPECT_THROW(cpu_kernels().adamw(args, {}), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
