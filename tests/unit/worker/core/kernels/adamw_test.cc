#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/expansion.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::test {
namespace {

const MomentFormat kPlain{};
const MomentFormat kNearest{Format::kE4M3, 128, 448.0 * 448.0 / 2.0, Rounding::kNearestEven};
const MomentFormat kStochastic{Format::kE4M3, 128, 448.0 * 448.0 / 2.0, Rounding::kStochastic};

// A parameter with both moments in one format, starting from zero.
struct State {
  explicit State(const MomentFormat& moment_format, std::vector<float> initial)
      : format(moment_format), value(std::move(initial)) {
    const std::size_t groups =
        (value.size() + static_cast<std::size_t>(format.group) - 1) / static_cast<std::size_t>(format.group);
    m.resize(value.size() * static_cast<std::size_t>(bytes_of(format.format)));
    v = m;
    m_amax.resize(groups);
    v_amax.resize(groups);
    m_k16.resize(groups, 255);
    v_k16.resize(groups, 255);
  }

  AdamWTensor tensor(const std::vector<float>& gradient) {
    return {.value = value.data(),
            .gradient = gradient.data(),
            .elements = static_cast<std::int64_t>(value.size()),
            .m = m.data(),
            .m_amax = m_amax.data(),
            .m_k16 = m_k16.data(),
            .v = v.data(),
            .v_amax = v_amax.data(),
            .v_k16 = v_k16.data()};
  }

  // What is stored, decoded by its definition.
  std::vector<double> moment1() const { return decode(m, m_amax, m_k16); }
  std::vector<double> moment2() const { return decode(v, v_amax, v_k16); }

  std::vector<double> decode(const std::vector<std::uint8_t>& data, const std::vector<float>& amax,
                             const std::vector<std::uint8_t>& k16) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (format.format == Format::kFp32) {
        values.push_back(double{reinterpret_cast<const float*>(data.data())[i]});
        continue;
      }
      const std::size_t group = i / static_cast<std::size_t>(format.group);
      const float magnitude = amax[group] * ExpansionTable::instance().values(k16[group])[data[i] & 0x7F];
      values.push_back((data[i] & 0x80) != 0 ? -double{magnitude} : double{magnitude});
    }
    return values;
  }

  bool operator==(const State&) const = default;

  MomentFormat format;
  std::vector<float> value, m_amax, v_amax;
  std::vector<std::uint8_t> m, v, m_k16, v_k16;
};

AdamWArgs args_of(const MomentFormat& format, std::uint64_t step, double beta1 = 0.9, double beta2 = 0.95) {
  AdamWArgs args;
  args.moment1 = args.moment2 = format;
  args.learning_rate = 1e-2f;
  args.beta1 = static_cast<float>(beta1);
  args.beta2 = static_cast<float>(beta2);
  args.eps = 1e-8f;
  args.weight_decay = 0.1f;
  args.bias_correction1 = 1 - std::pow(beta1, static_cast<double>(step));
  args.bias_correction2 = 1 - std::pow(beta2, static_cast<double>(step));
  args.seed = 3;
  args.step = step;
  return args;
}

void run(State& state, const std::vector<float>& gradient, AdamWArgs args) {
  args.tensors = {state.tensor(gradient)};
  cpu_kernels().adamw(args, {});
}

// Stores `values` as the first moment (beta1 = 0) and their squares as the second, at learning rate 0.
void store_values(State& state, const std::vector<float>& values) {
  AdamWArgs args = args_of(state.format, 1, 0.0, 0.0);
  args.bias_correction1 = args.bias_correction2 = 1;
  args.learning_rate = 0;
  run(state, values, args);
}

std::vector<float> lognormal(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values = normal_values(count, seed);
  const std::vector<float> exponents = normal_values(count, seed + 1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= 1e-3f * std::exp(exponents[i]);
  return values;
}

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
        if (std::fabs(values[i]) == state.m_amax[i / 128]) {
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
    const int k16 = ExpansionRange(kNearest.range_bound).k16(amax, amin);
    ASSERT_EQ(state.m_amax[first / 128], amax);
    ASSERT_EQ(state.m_k16[first / 128], k16);
    for (std::size_t i = first; i < end; ++i) {
      const int code =
          nearest_expanded_code(ExpansionTable::instance().boundaries(k16), std::fabs(values[i]) / amax);
      ASSERT_EQ(state.m[i], code | (values[i] < 0 ? 0x80 : 0));
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
  const PhiloxStream random{args.seed, args.step, 12, 1};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float* row = ExpansionTable::instance().values(state.m_k16[i / 128]);
    const float ratio = std::fabs(values[i]) / state.m_amax[i / 128];
    ASSERT_EQ(state.m[i] & 0x7F, stochastic_expanded_code(row, ratio, random.uniform(1281 + i))) << i;
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
  EXPECT_EQ(zero.m_amax, before.m_amax);
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
      run(*state, gradient, args_of(state->format, step, 0.9, kBeta2));
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
  EXPECT_EQ(joined(head.m, tail.m), whole.m);
  EXPECT_EQ(joined(head.v, tail.v), whole.v);
  EXPECT_EQ(joined(head.v_amax, tail.v_amax), whole.v_amax);
  EXPECT_EQ(joined(head.v_k16, tail.v_k16), whole.v_k16);
}

TEST(AdamWKernelTest, MeasuredStepIsTheSameStepAndItsSumsAreTheErrors) {
  const std::vector<float> initial = normal_values(1000, 10), gradient = lognormal(1000, 11);
  State measured(kStochastic, initial), plain(kStochastic, initial), exact(kPlain, initial);
  run(plain, gradient, args_of(kStochastic, 1));
  run(exact, gradient, args_of(kPlain, 1));
  AdamWArgs args = args_of(kStochastic, 1);
  args.tensors = {measured.tensor(gradient)};
  ErrorSums m, v;
  cpu_kernels().adamw_measured(args, &m, &v, {});
  EXPECT_EQ(measured, plain);
  const auto check = [](const ErrorSums& sums, const std::vector<double>& stored,
                        const std::vector<double>& wanted, const std::vector<std::uint8_t>& k16) {
    double error = 0, squares = 0, k_sum = 0;
    for (std::size_t i = 0; i < stored.size(); ++i) {
      error += std::pow(stored[i] - wanted[i], 2);
      squares += std::pow(wanted[i], 2);
    }
    for (const std::uint8_t k : k16) k_sum += k / 16.0;
    EXPECT_NEAR(sums.error_squared / error, 1, 1e-9);
    EXPECT_NEAR(sums.reference_squared / squares, 1, 1e-9);
    EXPECT_EQ(sums.elements, 1000);
    EXPECT_EQ(sums.underflowed, 0);
    EXPECT_EQ(sums.k_groups, 8);
    EXPECT_EQ(sums.k_sum, k_sum);
  };
  check(m, measured.moment1(), exact.moment1(), measured.m_k16);
  check(v, measured.moment2(), exact.moment2(), measured.v_k16);
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
  const AdamWTensor v_tensor = v_state.tensor(gradient);
  tensor.v = v_tensor.v;
  tensor.v_amax = v_tensor.v_amax;
  tensor.v_k16 = v_tensor.v_k16;
  args.tensors = {{}, tensor, {}};
  cpu_kernels().adamw(args, {});
  State m_alone(small, initial), v_alone(kNearest, initial);
  run(m_alone, gradient, args_of(small, 1));
  run(v_alone, gradient, args_of(kNearest, 1));
  EXPECT_EQ(m_state.m, m_alone.m);
  EXPECT_EQ(v_state.v, v_alone.v);
  EXPECT_EQ(m_state.value, m_alone.value);
  args.moment1.format = Format::kE5M2;
  EXPECT_THROW(cpu_kernels().adamw(args, {}), std::logic_error);
  args.moment1 = kNearest;
  args.moment1.group = 0;
  EXPECT_THROW(cpu_kernels().adamw(args, {}), std::logic_error);
}

TEST(SumOfSquaresTest, IsExactToFp64AndSeesNonFiniteValues) {
  for (const std::int64_t count : {0, 1, 7, 17, 4096, 4099, 50'000}) {
    std::vector<float> values = normal_values(count, 16, 1e15);
    double expected = 2, found = 2;
    for (const float value : values) expected += double{value} * double{value};
    cpu_kernels().sum_of_squares(values.data(), count, &found, {});
    EXPECT_NEAR(found / expected, 1, 1e-12);
    if (count == 0) continue;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      values.back() = bad;
      double sum = 0;
      cpu_kernels().sum_of_squares(values.data(), count, &sum, {});
      EXPECT_FALSE(std::isfinite(sum));
    }
  }
}

}  // namespace
}  // namespace coat::kernels::test
