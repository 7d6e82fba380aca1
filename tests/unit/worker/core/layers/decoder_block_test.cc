// One decoder layer, and each of its halves, against autograd in FP64.
#include "worker/core/layers/decoder_block.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/oracle/autograd_llama.h"
#include "tests/support/oracle/compare.h"
#include "tests/unit/worker/core/layers/layer_fixture.h"

namespace coat::layers {
namespace {

struct Case {
  BlockShape shape;
  const char* recipe_name;
};

struct Result {
  at::Tensor y, dx;
};

spec::ModelSpec model_of(const BlockShape& shape) {
  spec::ModelSpec model;
  model.hidden = shape.attention.width();
  model.intermediate = shape.intermediate;
  model.heads = shape.attention.heads;
  model.kv_heads = shape.attention.kv_heads;
  return model;
}

Result by_oracle(const BlockShape& shape, const oracle::Weights& weights, const at::Tensor& h,
                 const at::Tensor& dy, const Recipe* emulated) {
  const at::Tensor x = h.to(at::kDouble).set_requires_grad(true);
  const at::Tensor y =
      oracle::decoder_block({.emulated = emulated}, model_of(shape), weights, "model.layers.0.", x,
                            shape.attention.sequences, shape.attention.length);
  y.backward(dy.to(at::kDouble));
  return {y.detach(), x.grad()};
}

Residual entering(const LayerContext& context, const at::Tensor& h) {
  Residual residual = empty_residual(context, h.clone(), NextNorm::kStored);
  const Matrix quantized = quantized_copy_of(residual);
  if (quantized.data != nullptr) {
    context.kernels.quantize({.in = matrix_of(residual.h), .out = quantized}, context.stream);
  }
  return residual;
}

class DecoderBlock : public ::testing::TestWithParam<Case> {};

TEST_P(DecoderBlock, AgreesWithAutograd) {
  const BlockShape& shape = GetParam().shape;
  const Recipe& precision = recipe(GetParam().recipe_name);
  const LayerContext context = cpu_context(precision);
  BlockFixture block(shape);
  const at::Tensor h = random_bf16({shape.attention.tokens(), shape.attention.width()}, 1.0, 1);
  const at::Tensor dy = random_bf16(h.sizes(), 1e-3, 2);

  DecoderBlockSaved saved;
  const Residual y = decoder_block_forward(context, block.weights, shape.attention, entering(context, h),
                                           NextNorm::kStored, saved);
  const at::Tensor dx =
      decoder_block_backward(context, block.weights, shape.attention, saved, {dy.clone(), {}}).value;

  const oracle::Weights exact_weights = oracle::weights_of(block.parameters, at::kDouble);
  const oracle::Weights plain_weights = oracle::weights_of(block.parameters, at::kDouble);
  const Result exact = by_oracle(shape, exact_weights, h, dy, nullptr);
  const Result plain = by_oracle(shape, plain_weights, h, dy, &precision);
  constexpr double kFactor = 1.5;
  EXPECT_LE(oracle::relative_error(y.h, exact.y), kFactor * oracle::relative_error(plain.y, exact.y));
  EXPECT_LE(oracle::relative_error(dx, exact.dx), kFactor * oracle::relative_error(plain.dx, exact.dx));
  EXPECT_NEAR(oracle::norm_ratio(dx, exact.dx), 1.0, 0.01);
  for (const Parameter* parameter : block.parameters.all()) {
    const at::Tensor& expected = exact_weights.at(parameter->name).grad();
    const double allowed = oracle::relative_error(plain_weights.at(parameter->name).grad(), expected);
    EXPECT_LE(oracle::relative_error(parameter->gradient, expected), kFactor * allowed) << parameter->name;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name : {"bf16", "coat", "coat-paper"}) {
    all.push_back({{}, name});
    all.push_back({{{1, 129, 4, 2, 10}, 70}, name});
    all.push_back({{{3, 40, 4, 1, 16}, 33}, name});
    all.push_back({{{5, 31, 6, 3, 2}, 17}, name});
    all.push_back({{{20, 8, 1, 1, 32}, 64}, name});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecoderBlock, ::testing::ValuesIn(cases()), [](const auto& test) {
  const AttentionShape& shape = test.param.shape.attention;
  std::string name = test.param.recipe_name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_b" + std::to_string(shape.sequences) + "_s" + std::to_string(shape.length) + "_n" +
         std::to_string(shape.heads) + "_k" + std::to_string(shape.kv_heads);
});

// COAT.md 5.5 fact 28, with weights as a fresh model has them: adding the residual's gradient and its
// quantized copy would double it.
TEST(DecoderBlockGradient, OfTheResidualIsCountedOnce) {
  const BlockShape shape{{2, 64, 8, 8, 64}, 1376};
  const Recipe& precision = recipe("coat");
  const LayerContext context = cpu_context(precision);
  BlockFixture block(shape);
  for (Parameter* parameter : block.parameters.all()) {
    if (parameter->value.dim() == 2) parameter->value.mul_(0.02 / parameter->value.std().item<double>());
  }
  const at::Tensor h = random_bf16({shape.attention.tokens(), shape.attention.width()}, 1.0, 1);
  const at::Tensor dy = random_bf16(h.sizes(), 1e-3, 2);
  DecoderBlockSaved saved;
  decoder_block_forward(context, block.weights, shape.attention, entering(context, h), NextNorm::kStored,
                        saved);
  const at::Tensor dx =
      decoder_block_backward(context, block.weights, shape.attention, saved, {dy.clone(), {}}).value;
  const at::Tensor exact =
      by_oracle(shape, oracle::weights_of(block.parameters, at::kDouble), h, dy, nullptr).dx;
  EXPECT_GT(oracle::cosine(dx, exact), 0.999);
  EXPECT_NEAR(oracle::norm_ratio(dx, exact), 1.0, 0.01);
}

// Fact 27: what the norm reads in forward is what it saved, and a backward from the same tensors repeats its
// output.
TEST(DecoderBlockSavedTensors, AreWhatTheRecipeSays) {
  const BlockShape shape;
  const std::int64_t tokens = shape.attention.tokens();
  const at::Tensor h = random_bf16({tokens, shape.attention.width()}, 1.0, 1);
  for (const char* name : {"bf16", "coat", "coat-paper"}) {
    const Recipe& precision = recipe(name);
    const LayerContext context = cpu_context(precision);
    BlockFixture block(shape);
    DecoderBlockSaved saved;
    decoder_block_forward(context, block.weights, shape.attention, entering(context, h), NextNorm::kStored,
                          saved);
    EXPECT_EQ(saved.attention.norm.x.format, precision.saved_nonlinear);
    EXPECT_EQ(saved.mlp.norm.x.format, precision.saved_nonlinear);
    EXPECT_EQ(saved.mlp.gate.format, precision.saved_nonlinear);
    EXPECT_EQ(saved.mlp.up.format, precision.saved_nonlinear);
    EXPECT_EQ(saved.attention.q.format, precision.saved_attention);
    EXPECT_EQ(saved.attention.norm_output.defined(), precision.save_norm_output);
    EXPECT_EQ(saved.mlp.norm_output.defined(), precision.save_norm_output);
    EXPECT_EQ(saved.mlp.activation.defined(), precision.save_activation);
    EXPECT_EQ(saved.mlp.product.defined(), precision.save_product);
  }
}

// The operands that backward makes again are those that forward used, bit for bit, and so are those that it
// makes by way of BF16.
TEST(DecoderBlockSavedTensors, OperandsAreMadeAgainBitForBit) {
  Recipe keeping = recipe("coat");
  keeping.save_norm_output = keeping.save_product = true;
  BlockFixture block({});
  const BlockShape shape;
  const at::Tensor h = random_bf16({shape.attention.tokens(), shape.attention.width()}, 3.0, 8);
  const auto run = [&](const Recipe& precision) {
    const LayerContext context = cpu_context(precision);
    DecoderBlockSaved saved;
    block.parameters.zero_gradients();
    decoder_block_forward(context, block.weights, shape.attention, entering(context, h), NextNorm::kStored,
                          saved);
    decoder_block_backward(context, block.weights, shape.attention, saved,
                           {random_bf16(h.sizes(), 1e-3, 2), {}});
    std::vector<at::Tensor> gradients;
    for (const Parameter* parameter : block.parameters.all())
      gradients.push_back(parameter->gradient.clone());
    return gradients;
  };
  const std::vector<at::Tensor> kept = run(keeping), made = run(recipe("coat"));
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], made[i])) << i;
}

TEST(DecoderBlockSavedTensors, NormOutputIsRecomputedBitForBit) {
  const LayerContext context = cpu_context(recipe("coat"));
  BlockFixture block({});
  const at::Tensor h = random_bf16({19, block.weights.attention.norm->value.numel()}, 3.0, 8);
  const Residual residual = entering(context, h);
  RmsNormSaved saved;
  const Parameter& weight = *block.weights.attention.norm;
  const BoundedTensor y =
      rms_norm_forward(context, weight, 1e-5f, residual.stored, context.recipe.linear_operand, saved);
  const BoundedTensor again =
      rms_norm_recompute(context, weight, 1e-5f, context.recipe.linear_operand, saved);
  EXPECT_TRUE(at::equal(y.value, again.value));
  EXPECT_TRUE(at::equal(y.amax, again.amax));
  EXPECT_FLOAT_EQ(y.amax.item<float>(), y.value.abs().max().item<float>());
}

}  // namespace
}  // namespace coat::layers
