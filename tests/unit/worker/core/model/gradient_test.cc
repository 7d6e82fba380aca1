// Loss and every gradient of whole models against autograd in FP64.
//
// Tolerances are earned: next to the model runs a straightforward implementation of the same recipe in the
// oracle, which rounds every stored tensor at the same places. Both are measured against exact FP64
// arithmetic; the model may be at most kFactor times as far from it as that implementation is, in the root
// mean square over a few batches: one draw of the roundings says little for a norm's handful of weights.
#include <cmath>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/oracle/autograd_llama.h"
#include "tests/support/oracle/compare.h"
#include "tests/unit/worker/core/model/model_fixture.h"

namespace coat {
namespace {

constexpr double kFactor = 1.5;

// An absolute bound beside it: independent roundings add up as a random walk along the path. Root mean square
// of one rounding (COAT.md 5.1 fact 8): BF16 2^-9; E4M3 0.026, E5M2 0.052. A layer's path has 24 of BF16
// forward and backward, 12 of E4M3 and 8 of E5M2 under recipe coat; norm and head add 6 of BF16. coat-paper
// adds one of E4M3, silu(gate), forward and backward, and of BF16 one for each of 9 weights, their products
// and those of the input gradients that are added, and for the gradient of silu.
double random_walk(const std::string& recipe_name, std::int64_t layers) {
  const auto n = static_cast<double>(layers);
  const bool paper = recipe_name == "coat-paper";
  const double bf16 = ((paper ? 24 + 24 : 24) * n + 6) * std::pow(2.0, -18);
  const double e4m3 = paper ? 14 : 12;
  const double fp8 = recipe_name.starts_with("bf16") ? 0 : n * (e4m3 * 0.026 * 0.026 + 8 * 0.052 * 0.052);
  return 2 * std::sqrt(bf16 + fp8);
}

struct Reference {
  double loss = 0;
  oracle::Weights weights;  // with gradients of the mean loss
};

Reference reference(const Shape& shape, const ParameterRegistry& parameters, const MicroBatch& batch,
                    const Recipe* emulated) {
  Reference result{0, oracle::weights_of(parameters, at::kDouble)};
  const at::Tensor loss =
      oracle::loss_sum({.dtype = at::kDouble, .emulated = emulated}, shape.model(), result.weights, batch);
  result.loss = loss.item<double>();
  (loss / counting(batch)).backward();
  return result;
}

struct Case {
  Shape shape;
  std::string recipe;
  bool masked = false;
};

// Of the loss, a sum over tokens: errors of independent logits, each of a target's and of the others' mean,
// as large as the straightforward implementation's logits have them.
double loss_variance(const Shape& shape, const oracle::Weights& weights, const MicroBatch& batch,
                     const Recipe& precision) {
  const auto logits = [&](const Recipe* emulated) {
    return oracle::logits({.emulated = emulated}, shape.model(), weights, batch.tokens, batch.sequences,
                          batch.length);
  };
  const double error_squared = (logits(&precision) - logits(nullptr)).square().mean().item<double>();
  return 2.0 * static_cast<double>(batch.tokens.numel()) * error_squared;
}

// Distances of the loss from exact arithmetic, over batches.
struct LossDistance {
  double model = 0, plain = 0, variance = 0;

  LossDistance& operator+=(const LossDistance& other) {
    model += other.model;
    plain += other.plain;
    variance += other.variance;
    return *this;
  }
  // The straightforward implementation's distance may vanish by chance: three standard deviations beside it.
  void expect_near() const {
    EXPECT_LE(std::abs(model), kFactor * std::abs(plain) + 3 * std::sqrt(variance));
  }
};

class ModelGradient : public ::testing::TestWithParam<Case> {};

// Squares of relative errors, over batches.
struct Distance {
  double model = 0, plain = 0;
};

// Of every gradient of a batch, added to `distances`; that of the loss.
LossDistance measure(const Case& c, LanguageModel& model, std::uint64_t seed,
                     std::map<std::string, Distance>& distances) {
  const Shape& shape = c.shape;
  const Recipe precision = recipe_named(c.recipe);
  const MicroBatch batch = make_batch(shape, seed, c.masked);
  model.parameters().zero_gradients();
  const double loss = model.forward_backward(batch, static_cast<float>(1 / counting(batch)), nullptr);

  const Reference exact = reference(shape, model.parameters(), batch, nullptr);
  const Reference plain = reference(shape, model.parameters(), batch, &precision);
  const LossDistance loss_distance{loss - exact.loss, plain.loss - exact.loss,
                                   loss_variance(shape, exact.weights, batch, precision)};
  EXPECT_DOUBLE_EQ(loss, model.loss(batch));
  const double head_norm = exact.weights.at("model.norm.weight").grad().norm().item<double>();
  for (const Parameter* parameter : model.parameters().all()) {
    const at::Tensor& expected = exact.weights.at(parameter->name).grad();
    if (expected.norm().item<double>() < 1e-12 * head_norm) {
      // Of q and k where a sequence is one token: nothing but FP32 noise may be there.
      EXPECT_EQ(shape.length, 1) << parameter->name;
      EXPECT_LT(parameter->gradient.norm().item<double>(), 1e-5 * head_norm) << parameter->name;
      continue;
    }
    const double error = oracle::relative_error(parameter->gradient, expected),
                 plain_error = oracle::relative_error(plain.weights.at(parameter->name).grad(), expected);
    EXPECT_LE(error, random_walk(c.recipe, shape.layers)) << parameter->name;
    distances[parameter->name].model += error * error;
    distances[parameter->name].plain += plain_error * plain_error;
  }
  return loss_distance;
}

TEST_P(ModelGradient, IsAsNearToExactArithmeticAsAStraightforwardImplementation) {
  const auto model = make_model(GetParam().shape, GetParam().recipe);
  std::map<std::string, Distance> distances;
  LossDistance of_all;
  for (const std::uint64_t seed : {3u, 4u, 5u, 6u}) {
    const LossDistance of_batch = measure(GetParam(), *model, seed, distances);
    of_batch.expect_near();
    of_all += of_batch;
  }
  of_all.expect_near();  // a bias adds up, chance does not
  for (const auto& [name, distance] : distances) {
    EXPECT_LE(std::sqrt(distance.model), kFactor * std::sqrt(distance.plain)) << name;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name : {"bf16", "coat", "coat-paper"}) {
    all.push_back({Shape{}, name});
    all.push_back({Shape{}, name, /*masked=*/true});
    all.push_back({Shape{.tied = true}, name});
    all.push_back({Shape{.kv_heads = 2}, name});
    all.push_back({Shape{.kv_heads = 1, .tied = true, .sequences = 1, .length = 129}, name});
    all.push_back({Shape{.sequences = 3, .length = 1}, name});
    all.push_back({Shape{.hidden = 36, .intermediate = 50, .heads = 6, .kv_heads = 3, .sequences = 5}, name});
  }
  all.push_back({Shape{.kv_heads = 2}, "coat_saved"});
  all.push_back({Shape{.kv_heads = 2}, "coat_attention"});
  all.push_back({Shape{.kv_heads = 2}, "coat_master"});
  all.push_back({Shape{.kv_heads = 2, .tied = true}, "bf16_stochastic"});
  return all;
}

std::string name_of(const Case& c) {
  return test_name(c.recipe) + "_" + c.shape.name() + (c.masked ? "_masked" : "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, ModelGradient, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace coat
