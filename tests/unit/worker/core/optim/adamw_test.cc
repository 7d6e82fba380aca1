#include "worker/core/optim/adamw.h"

#include <cmath>
#include <limits>
#include <map>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/core/kernels/cpu/cpu_kernels.h"
#include "worker/core/quant/philox.h"
#include "worker/core/quant/weight_format.h"

namespace coat {
namespace {

using kernels::cpu_kernels;

// Uniform in [-1, 1) times `scale`, a function of (seed, index).
at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed, double scale) {
  at::Tensor values = at::empty(shape, at::kFloat);
  float* data = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const float uniform = philox_uniform(PhiloxStream{seed, 0, 0}.word(static_cast<std::uint64_t>(i)));
    data[i] = static_cast<float>(scale * (2.0 * double{uniform} - 1.0));
  }
  return values;
}

// Three parameters of odd sizes, one without decay.
void fill(ParameterRegistry& registry) {
  registry.add("embed.weight", {40, 33}, true, at::kCPU).value.copy_(random_tensor({40, 33}, 1, 1));
  registry.add("norm.weight", {33}, false, at::kCPU).value.copy_(random_tensor({33}, 2, 1));
  registry.add("head.weight", {7, 129}, true, at::kCPU).value.copy_(random_tensor({7, 129}, 3, 1));
}

// Gradients of step `step`, with a scale of their own for every parameter.
void fill_gradients(ParameterRegistry& registry, std::uint64_t step, double scale = 1.0) {
  for (Parameter* parameter : registry.all()) {
    const std::uint64_t seed = 100 * step + parameter->id;
    parameter->gradient.copy_(
        random_tensor(parameter->value.sizes(), seed, scale * std::pow(10.0, -1.0 * parameter->id)));
  }
}

double norm_of_gradients(const ParameterRegistry& registry) {
  double sum = 0;
  for (const Parameter* parameter : registry.all()) {
    sum += parameter->gradient.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

// AdamW as torch.optim.AdamW defines it, in FP64.
struct Reference {
  explicit Reference(const ParameterRegistry& registry) {
    for (const Parameter* parameter : registry.all()) {
      value.push_back(parameter->value.to(at::kDouble));
      m.push_back(at::zeros_like(value.back()));
      v.push_back(at::zeros_like(value.back()));
    }
  }

  void step(const ParameterRegistry& registry, const AdamWOptions& options, double step, double rate,
            double clip) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      const Parameter& parameter = *registry.all()[i];
      const at::Tensor g = parameter.gradient.to(at::kDouble) * clip;
      if (parameter.decay) value[i].mul_(1 - rate * options.weight_decay);
      m[i].mul_(options.beta1).add_(g, 1 - options.beta1);
      v[i].mul_(options.beta2).add_(g * g, 1 - options.beta2);
      const at::Tensor denominator =
          at::sqrt(v[i]) / std::sqrt(1 - std::pow(options.beta2, step)) + options.eps;
      value[i].sub_(m[i] / denominator * (rate / (1 - std::pow(options.beta1, step))));
    }
  }

  std::vector<at::Tensor> value, m, v;
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b).abs().max().item<double>();
}

TEST(AdamWTest, FiftyStepsWithFp32MomentsFollowTorchInFp64) {
  ParameterRegistry registry;
  fill(registry);
  AdamWOptions options;
  options.clip_norm = 5;
  AdamW optimizer(registry, recipe("bf16"), options, cpu_kernels());
  Reference reference(registry);
  int clipped = 0;
  for (std::uint64_t step = 1; step <= 50; ++step) {
    fill_gradients(registry, step, step % 2 == 0 ? 1.0 : 0.05);
    const double norm = norm_of_gradients(registry);
    const double clip = std::min(1.0, options.clip_norm / norm);
    clipped += clip < 1 ? 1 : 0;
    optimizer.step(step, 1e-2, false);
    const AdamWStepResult result = optimizer.result();
    EXPECT_NEAR(result.grad_norm / norm, 1, 1e-10);
    EXPECT_FALSE(result.skipped);
    reference.step(registry, options, static_cast<double>(step), 1e-2, clip);
  }
  EXPECT_EQ(clipped, 25);
  for (std::size_t i = 0; i < registry.all().size(); ++i) {
    // A few FP32 roundings of a value below 2 and of an update below 0.1 in each step.
    EXPECT_LE(largest_difference(registry.all()[i]->value, reference.value[i]), 50 * 5 * 0x1p-24) << i;
  }
}

// With FP8 moments the run stays near: its distance to FP32 is small against the way that the parameters
// went.
TEST(AdamWTest, FiftyStepsWithFp8MomentsStayNear) {
  ParameterRegistry registry;
  fill(registry);
  const AdamWOptions options{.clip_norm = 0};
  AdamW optimizer(registry, recipe("coat"), options, cpu_kernels());
  Reference reference(registry), start(registry);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    fill_gradients(registry, step);
    optimizer.step(step, 1e-2, false);
    reference.step(registry, options, static_cast<double>(step), 1e-2, 1.0);
  }
  for (std::size_t i = 0; i < registry.all().size(); ++i) {
    const double moved = (reference.value[i] - start.value[i]).norm().item<double>();
    const double apart =
        (registry.all()[i]->value.to(at::kDouble) - reference.value[i]).norm().item<double>();
    EXPECT_GT(moved, 0);
    EXPECT_LT(apart, 0.05 * moved) << registry.all()[i]->name;
    EXPECT_GT(apart, 0) << "the moments were not quantized";
  }
}

// Every bit of the state and the parameters.
std::map<std::string, at::Tensor> snapshot(const ParameterRegistry& registry, const AdamW& optimizer) {
  std::map<std::string, at::Tensor> copy;
  for (const auto& [name, tensor] : optimizer.state()) copy[name] = tensor.clone();
  for (const Parameter* parameter : registry.all()) copy[parameter->name] = parameter->value.clone();
  return copy;
}

void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

class AdamWRecipeTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, AdamWRecipeTest, testing::Values("coat", "bf16"));

TEST_P(AdamWRecipeTest, NonFiniteGradientsChangeNothing) {
  ParameterRegistry registry;
  fill(registry);
  AdamW optimizer(registry, recipe(GetParam()), {}, cpu_kernels());
  fill_gradients(registry, 1);
  optimizer.step(1, 1e-2, false);
  const auto before = snapshot(registry, optimizer);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    fill_gradients(registry, 2);
    registry.all()[2]->gradient[3][5] = bad;
    optimizer.step(2, 1e-2, true);
    const AdamWStepResult result = optimizer.result();
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_EQ(result.errors.moment1.elements, 0);
    expect_equal(snapshot(registry, optimizer), before);
  }
}

// What a checkpoint does: a second optimizer that gets the state and the parameters goes on bit for bit.
TEST_P(AdamWRecipeTest, ContinuesFromItsStateBitForBit) {
  ParameterRegistry first, second;
  fill(first);
  fill(second);
  AdamW original(first, recipe(GetParam()), {}, cpu_kernels()),
      resumed(second, recipe(GetParam()), {}, cpu_kernels());
  const auto advance = [](ParameterRegistry& registry, AdamW& optimizer, std::uint64_t step) {
    fill_gradients(registry, step);
    optimizer.step(step, 1e-2, false);
  };
  for (std::uint64_t step = 1; step <= 5; ++step) advance(first, original, step);
  const auto from = original.state(), to = resumed.state();
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].first, to[i].first);
    to[i].second.copy_(from[i].second);
  }
  for (std::size_t i = 0; i < first.all().size(); ++i) second.all()[i]->value.copy_(first.all()[i]->value);
  for (std::uint64_t step = 6; step <= 10; ++step) {
    advance(first, original, step);
    advance(second, resumed, step);
  }
  expect_equal(snapshot(first, original), snapshot(second, resumed));
}

TEST_P(AdamWRecipeTest, BytesAreThoseOfTheFormat) {
  ParameterRegistry registry;
  fill(registry);
  const AdamW optimizer(registry, recipe(GetParam()), {}, cpu_kernels());
  std::int64_t expected = 0, held = 0;
  for (const Parameter* parameter : registry.all()) {
    expected += recipe(GetParam()).moment1.total_bytes(parameter->value.numel());
  }
  for (const auto& [name, tensor] : optimizer.state()) held += static_cast<std::int64_t>(tensor.nbytes());
  EXPECT_EQ(optimizer.moment1_bytes(), expected);
  EXPECT_EQ(optimizer.moment2_bytes(), expected);
  EXPECT_EQ(held, 2 * expected);
}

TEST(AdamWStateTest, NamesFollowTheParameters) {
  ParameterRegistry registry;
  registry.add("w", {300}, true, at::kCPU);
  const auto names_of = [&registry](const Recipe& format) {
    std::vector<std::string> found;
    for (const auto& [key, tensor] : AdamW(registry, format, {}, cpu_kernels()).state()) found.push_back(key);
    return found;
  };
  const auto names = [&names_of](const char* name) { return names_of(recipe(name)); };
  EXPECT_THAT(names("bf16"), testing::ElementsAre("w.moment1", "w.moment2"));
  EXPECT_THAT(names("coat"), testing::ElementsAre("w.moment1", "w.moment1.amax", "w.moment1.row", "w.moment2",
                                                  "w.moment2.amax", "w.moment2.row"));
  Recipe plain = recipe("coat");
  plain.moment1 = plain.moment2 = moment_format(MomentCode::kE4M3, false, 128, Rounding::kNearestEven);
  EXPECT_THAT(names_of(plain),
              testing::ElementsAre("w.moment1", "w.moment1.amax", "w.moment2", "w.moment2.amax"));
}

TEST(AdamWStateTest, MeasuredStepsReportBothMoments) {
  ParameterRegistry registry, unmeasured;
  fill(registry);
  fill(unmeasured);
  AdamW optimizer(registry, recipe("coat"), {}, cpu_kernels()),
      other(unmeasured, recipe("coat"), {}, cpu_kernels());
  fill_gradients(registry, 1);
  fill_gradients(unmeasured, 1);
  optimizer.step(1, 1e-2, true);
  other.step(1, 1e-2, false);
  const kernels::AdamWErrors errors = optimizer.result().errors;
  EXPECT_EQ(other.result().errors.moment1.elements, 0);
  expect_equal(snapshot(registry, optimizer), snapshot(unmeasured, other));
  for (const kernels::ErrorSums& sums : {errors.moment1, errors.moment2, errors.update}) {
    EXPECT_EQ(sums.elements, static_cast<double>(registry.element_count()));
    const double relative = std::sqrt(sums.error_squared / sums.reference_squared);
    EXPECT_GT(relative, 0);
    EXPECT_LT(relative, 1.0 / 16);
    EXPECT_EQ(sums.underflowed, 0);
  }
  EXPECT_GT(errors.moment1.k_sum, 0);
  EXPECT_GT(errors.moment2.k_sum, 0);
}

TEST(AdamWStateTest, SeedsChangeTheRoundingAlone) {
  ParameterRegistry first, second;
  fill(first);
  fill(second);
  AdamW a(first, recipe("coat"), {.seed = 1}, cpu_kernels()),
      b(second, recipe("coat"), {.seed = 2}, cpu_kernels());
  fill_gradients(first, 1);
  fill_gradients(second, 1);
  a.step(1, 1e-2, false);
  b.step(1, 1e-2, false);
  const auto left = snapshot(first, a), right = snapshot(second, b);
  EXPECT_TRUE(at::equal(left.at("embed.weight"), right.at("embed.weight")));
  EXPECT_TRUE(at::equal(left.at("embed.weight.moment1.amax"), right.at("embed.weight.moment1.amax")));
  EXPECT_FALSE(at::equal(left.at("embed.weight.moment1"), right.at("embed.weight.moment1")));
}

// Matrices in BF16 with BF16 gradients beside a norm weight in FP32, as WeightFormat and Recipe have it.
void fill_short(ParameterRegistry& registry, bool residual) {
  const ParameterStorage matrix{.value = at::kBFloat16, .residual = residual, .gradient = at::kBFloat16};
  registry.add("embed.weight", {40, 33}, true, at::kCPU, matrix).value.copy_(random_tensor({40, 33}, 1, 1));
  registry.add("norm.weight", {33}, false, at::kCPU).value.copy_(random_tensor({33}, 2, 1));
  registry.add("head.weight", {7, 129}, true, at::kCPU, matrix).value.copy_(random_tensor({7, 129}, 3, 1));
}

// What the residual holds beside the value.
at::Tensor whole_value(const Parameter& parameter) {
  at::Tensor value = parameter.value.to(at::kFloat);
  if (!parameter.residual.defined()) return value;
  for (std::int64_t i = 0; i < value.numel(); ++i) {
    const auto code = static_cast<std::uint16_t>(parameter.value.const_data_ptr<at::BFloat16>()[i].x);
    value.mutable_data_ptr<float>()[i] =
        join_weight(code, parameter.residual.const_data_ptr<std::int8_t>()[i]);
  }
  return value;
}

TEST(AdamWWeightsTest, Bf16WeightsFollowTorchInFp64) {
  for (const bool residual : {true, false}) {
    ParameterRegistry registry;
    fill_short(registry, residual);
    const AdamWOptions options{.clip_norm = 5};
    AdamW optimizer(registry, recipe("bf16"), options, cpu_kernels());
    Reference reference(registry);
    for (std::uint64_t step = 1; step <= 50; ++step) {
      fill_gradients(registry, step);
      const double clip = std::min(1.0, options.clip_norm / norm_of_gradients(registry));
      optimizer.step(step, 1e-3, false);
      reference.step(registry, options, static_cast<double>(step), 1e-3, clip);
    }
    for (std::size_t i = 0; i < registry.all().size(); ++i) {
      const Parameter& parameter = *registry.all()[i];
      const bool fp32 = parameter.value.scalar_type() == at::kFloat;
      // Of a value below 2: half a unit of 24, 16 or 8 bits a step; stochastic rounding walks at random, by a
      // whole unit at most in a step, so five deviations of the sum of 50.
      const double unit = fp32 ? 0x1p-22 : residual ? 0x1p-16 : 0x1p-7;
      const double bound =
          fp32 || residual ? 50 * (unit / 2 + 5 * 0x1p-24) : 5 * 0.5 * unit * std::sqrt(50.0);
      EXPECT_LE(largest_difference(whole_value(parameter), reference.value[i]), bound) << parameter.name;
    }
  }
}

TEST(AdamWWeightsTest, AGradientThatIsNotFiniteLeavesAllTypesAsTheyWere) {
  ParameterRegistry registry;
  fill_short(registry, true);
  AdamW optimizer(registry, recipe("coat"), {}, cpu_kernels());
  fill_gradients(registry, 1);
  optimizer.step(1, 1e-2, false);
  auto before = snapshot(registry, optimizer);
  const at::Tensor residual = registry.all()[0]->residual.clone();
  fill_gradients(registry, 2);
  registry.all()[0]->gradient[3][5] = std::numeric_limits<float>::infinity();
  optimizer.step(2, 1e-2, false);
  EXPECT_TRUE(optimizer.result().skipped);
  expect_equal(snapshot(registry, optimizer), before);
  EXPECT_TRUE(at::equal(registry.all()[0]->residual, residual));
}

TEST(AdamWStateTest, AnEmptyRegistryIsFine) {
  ParameterRegistry registry;
  AdamW optimizer(registry, recipe("coat"), {}, cpu_kernels());
  optimizer.step(1, 1e-2, true);
  EXPECT_EQ(optimizer.result().grad_norm, 0);
  EXPECT_TRUE(optimizer.state().empty());
}

}  // namespace
}  // namespace coat
