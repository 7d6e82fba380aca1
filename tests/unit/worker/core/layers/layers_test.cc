// Single layers in formats without rounding of their own worth naming (BF16), against autograd in FP64.
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/oracle/compare.h"
#include "tests/unit/worker/core/layers/layer_fixture.h"
#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"
#include "worker/core/layers/embedding.h"
#include "worker/core/layers/head.h"
#include "worker/core/layers/linear.h"

namespace coat::layers {
namespace {

// Unit roundoff of BF16 (eight significant bits): an output is rounded once.
constexpr double kBf16Rounding = 0x1p-8;

at::Tensor exact(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble).set_requires_grad(true); }

Parameter& random_parameter(ParameterRegistry& registry, const char* name, at::IntArrayRef shape,
                            std::uint64_t seed) {
  Parameter& parameter = registry.add(name, shape, true, at::kCPU);
  // Values of BF16, so that rounding the weight changes nothing.
  parameter.value.copy_(random_bf16(shape, 0.3, seed));
  return parameter;
}

TEST(RmsNorm, ForwardAndBackwardAgreeWithAutograd) {
  const LayerContext context = cpu_context(recipe("bf16"));
  for (const auto& [tokens, hidden] : {std::pair{1, 2}, {17, 48}, {129, 250}}) {
    ParameterRegistry registry;
    Parameter& weight = random_parameter(registry, "norm", {hidden}, 1);
    const at::Tensor x = random_bf16({tokens, hidden}, 2.0, 2);
    const at::Tensor dy = random_bf16({tokens, hidden}, 0.5, 3);
    RmsNormSaved saved;
    const at::Tensor y =
        rms_norm_forward(context, weight, 1e-5f, as_stored(x), context.recipe.linear_operand, saved).value;
    const at::Tensor dx = rms_norm_backward(context, weight, saved, dy);

    const at::Tensor xe = exact(x), we = exact(weight.value);
    const at::Tensor ye = xe * at::rsqrt(xe.square().mean(-1, true) + 1e-5) * we;
    ye.backward(dy.to(at::kDouble));
    EXPECT_LT(oracle::relative_error(y, ye), kBf16Rounding);
    // Where a row has two elements the gradient is what is left of two that nearly cancel.
    EXPECT_LT(oracle::relative_error(dx, xe.grad()), hidden > 2 ? kBf16Rounding : 8 * kBf16Rounding);
    EXPECT_LT(oracle::relative_error(weight.gradient, we.grad()), 1e-5);
  }
}

TEST(Linear, ThreeProductsAgreeWithAutograd) {
  const LayerContext context = cpu_context(recipe("bf16"));
  for (const auto& [tokens, in, out] : {std::tuple{1, 1, 1}, {17, 48, 31}, {129, 250, 300}}) {
    ParameterRegistry registry;
    Parameter& weight = random_parameter(registry, "linear", {out, in}, 1);
    const at::Tensor x = random_bf16({tokens, in}, 1.0, 2);
    const at::Tensor dy = random_bf16({tokens, out}, 0.5, 3);
    const Operand xo = make_operand(context, {x, {}}, context.recipe.linear_operand, OperandUse::kForward);
    const Operand go = gradient_operand(context, {dy, {}});
    const at::Tensor y = empty_bf16(context, tokens, out);
    const at::Tensor dx = empty_fp32(context, {tokens, in});
    linear_forward(context, xo, weight, matrix_of(y));
    linear_backward_input(context, go, weight, matrix_of(dx), false);
    linear_backward_input(context, go, weight, matrix_of(dx), true);
    linear_backward_weight(context, go, xo, weight);

    const at::Tensor xe = exact(x), we = exact(weight.value);
    const at::Tensor ye = at::linear(xe, we);
    ye.backward(dy.to(at::kDouble));
    EXPECT_LT(oracle::relative_error(y, ye), kBf16Rounding);
    EXPECT_LT(oracle::relative_error(dx, 2 * xe.grad()), 1e-5) << "the second product accumulates";
    EXPECT_LT(oracle::relative_error(weight.gradient, we.grad()), 1e-5);
  }
}

// What tensor cores need, which the CPU does not: the transposed copy holds the same codes, and products from
// it are the same.
class KMajorKernels final : public kernels::Kernels {
 public:
  explicit KMajorKernels(const kernels::Kernels& kernels) : kernels_(kernels) {}
  const char* device_name() const override { return "k-major"; }
  bool needs_k_major(Format format) const override { return bytes_of(format) == 1; }
  void quantize(const kernels::QuantizeArgs& args, kernels::Stream s) const override {
    kernels_.quantize(args, s);
  }
  void gemm(const kernels::GemmArgs& args, kernels::Stream s) const override {
    if (needs_k_major(args.a.format.format)) {
      EXPECT_EQ(args.a_layout, kernels::Layout::kKMajor);
      EXPECT_EQ(args.b_layout, kernels::Layout::kKMajor);
    }
    kernels_.gemm(args, s);
  }

 private:
  const kernels::Kernels& kernels_;
};

TEST(Linear, TransposedCopiesGiveTheSameProducts) {
  const LayerContext plain = cpu_context(recipe("coat"));
  const KMajorKernels k_major(plain.kernels);
  const LayerContext copies{k_major, {}, at::kCPU, plain.recipe, nullptr};
  const at::Tensor x = random_bf16({37, 48}, 1.0, 2);
  const at::Tensor dy = random_bf16({37, 24}, 0.5, 3);
  const auto run = [&](const LayerContext& context) {
    ParameterRegistry registry;
    Parameter& weight = random_parameter(registry, "linear", {24, 48}, 1);
    Operand xo = make_operand(context, {x, {}}, context.recipe.linear_operand, OperandUse::kBackward);
    EXPECT_EQ(xo.transposed.defined(), context.kernels.needs_k_major(Format::kE4M3));
    xo.keep_for_weight_gradient();
    const Operand go = gradient_operand(context, {dy, {}});
    const at::Tensor dx = empty_fp32(context, {37, 48});
    linear_backward_input(context, go, weight, matrix_of(dx), false);
    linear_backward_weight(context, go, xo, weight);
    return std::pair{dx, weight.gradient.clone()};
  };
  const auto [dx, dw] = run(plain);
  const auto [dx_copies, dw_copies] = run(copies);
  EXPECT_LT(oracle::relative_error(dx_copies, dx), 1e-6);
  EXPECT_LT(oracle::relative_error(dw_copies, dw), 1e-6);
}

// Attention written out in FP64, with its gradients for an output `out` that may be rounded: softmax's
// gradient subtracts row sums of d_out * out. Matrices [T, heads * D], gradients of k and v for every query
// head apart.
struct WrittenAttention {
  AttentionShape shape;
  at::Tensor q, k, v;  // [B, N, S, D]

  at::Tensor heads(const at::Tensor& x, std::int64_t count) const {
    return x.to(at::kDouble)
        .view({shape.sequences, shape.length, count, shape.head_dim})
        .transpose(1, 2)
        .repeat_interleave(shape.heads / count, 1);
  }
  WrittenAttention(const AttentionShape& s, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value)
      : shape(s), q(heads(query, s.heads)), k(heads(key, s.kv_heads)), v(heads(value, s.kv_heads)) {}

  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }
  at::Tensor probabilities() const {
    const at::Tensor future = at::ones({shape.length, shape.length}, at::kBool).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) * scale();
    return at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1);
  }
  at::Tensor rows(const at::Tensor& x) const {
    return x.transpose(1, 2).reshape({shape.tokens(), shape.width()});
  }
  // Summed over the query heads of one key-value head.
  at::Tensor kv_rows(const at::Tensor& x) const {
    return rows(x)
        .view({shape.tokens(), shape.kv_heads, shape.heads / shape.kv_heads, shape.head_dim})
        .sum(2)
        .view({shape.tokens(), shape.kv_width()});
  }
  at::Tensor out() const { return rows(at::matmul(probabilities(), v)); }
  struct Gradients {
    at::Tensor q, k, v;
  };
  Gradients gradients(const at::Tensor& out_rows, const at::Tensor& d_out_rows) const {
    const at::Tensor p = probabilities();
    const at::Tensor d_out = heads(d_out_rows, shape.heads);
    const at::Tensor sums = (d_out * heads(out_rows, shape.heads)).sum(-1, true);
    const at::Tensor d_scores = p * (at::matmul(d_out, v.transpose(-2, -1)) - sums) * scale();
    return {rows(at::matmul(d_scores, k)), kv_rows(at::matmul(d_scores.transpose(-2, -1), q)),
            kv_rows(at::matmul(p.transpose(-2, -1), d_out))};
  }
};

TEST(WrittenAttentionOracle, AgreesWithAutograd) {
  const AttentionShape shape{2, 9, 4, 2, 6};
  const at::Tensor q = exact(oracle::random_normal({18, 24}, 1.5, 1));
  const at::Tensor k = exact(oracle::random_normal({18, 12}, 1.5, 2));
  const at::Tensor v = exact(oracle::random_normal({18, 12}, 1.0, 3));
  const at::Tensor d_out = oracle::random_normal({18, 24}, 1.0, 4).to(at::kDouble);
  const WrittenAttention written(shape, q, k, v);
  const at::Tensor out = written.out();
  out.backward(d_out, /*retain_graph=*/true);
  const WrittenAttention::Gradients d = written.gradients(out, d_out);
  EXPECT_LT(oracle::relative_error(d.q, q.grad()), 1e-12);
  EXPECT_LT(oracle::relative_error(d.k, k.grad()), 1e-12);
  EXPECT_LT(oracle::relative_error(d.v, v.grad()), 1e-12);
}

TEST(AttentionCore, ForwardAndBackwardRoundOnce) {
  const LayerContext context = cpu_context(recipe("bf16"));
  const std::vector<AttentionShape> shapes = {{2, 17, 4, 4, 12}, {1, 129, 4, 2, 10}, {9, 7, 4, 1, 16},
                                              {33, 5, 1, 1, 8},  {3, 1, 2, 2, 4},    {1, 800, 2, 1, 6},
                                              {1, 1200, 1, 1, 4}};
  for (const AttentionShape& shape : shapes) {
    const at::Tensor q = random_bf16({shape.tokens(), shape.width()}, 1.5, 1);
    const at::Tensor k = random_bf16({shape.tokens(), shape.kv_width()}, 1.5, 2);
    const at::Tensor v = random_bf16({shape.tokens(), shape.kv_width()}, 1.0, 3);
    const at::Tensor d_out = random_bf16(q.sizes(), 0.5, 4);
    const at::Tensor out = empty_bf16(context, shape.tokens(), shape.width());
    const at::Tensor log_sum_exp = empty_fp32(context, {shape.tokens(), shape.heads});
    const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const AttentionCore& core = attention_core(at::kCPU);
    core.forward(context, {.shape = shape,
                           .q = matrix_of(q),
                           .k = matrix_of(k),
                           .v = matrix_of(v),
                           .out = matrix_of(out),
                           .log_sum_exp = log_sum_exp});
    core.backward(context, {.shape = shape,
                            .q = matrix_of(q),
                            .k = matrix_of(k),
                            .v = matrix_of(v),
                            .out = matrix_of(out),
                            .log_sum_exp = log_sum_exp,
                            .d_out = matrix_of(d_out),
                            .dq = matrix_of(dq),
                            .dk = matrix_of(dk),
                            .dv = matrix_of(dv)});
    const WrittenAttention written(shape, q, k, v);
    const WrittenAttention::Gradients d = written.gradients(out, d_out);
    SCOPED_TRACE(std::to_string(shape.sequences) + "x" + std::to_string(shape.length));
    EXPECT_LT(oracle::relative_error(out, written.out()), kBf16Rounding);
    EXPECT_LT(oracle::relative_error(dv, d.v), kBf16Rounding);
    if (shape.length == 1) continue;  // q and k have no gradient
    EXPECT_LT(oracle::relative_error(dq, d.q), kBf16Rounding);
    EXPECT_LT(oracle::relative_error(dk, d.k), kBf16Rounding);
  }
}

// A build without CUDA kernels has no attention for it either, and says what to do.
TEST(AttentionCore, OfCudaGoesWithTheKernels) {
  const auto error_of = [](const auto& get) -> std::string {
    try {
      get();
    } catch (const UnsupportedError& error) {
      return error.what();
    }
    return "";
  };
  const std::string kernels_error = error_of([] { kernels::cuda_kernels(); });
  const std::string attention_error = error_of([] { attention_core(at::kCUDA); });
  EXPECT_EQ(attention_error.empty(), kernels_error.empty());
  if (!attention_error.empty()) {
    EXPECT_NE(attention_error.find("resources.device: cpu"), std::string::npos) << attention_error;
  }
}

TEST(Embedding, ForwardRoundsRowsAndBackwardAddsThem) {
  const LayerContext context = cpu_context(recipe("coat"));
  ParameterRegistry registry;
  Parameter& weight = random_parameter(registry, "embedding", {7, 20}, 1);
  const at::Tensor tokens = at::tensor({3, 0, 3, 6, 3}, at::kInt);
  EmbeddingSaved saved;
  const Residual out = embedding_forward(context, weight, tokens, saved);
  EXPECT_TRUE(at::equal(out.h, weight.value.to(at::kBFloat16).index_select(0, tokens)));
  EXPECT_EQ(out.stored.format, context.recipe.saved_nonlinear);
  const at::Tensor dy = random_bf16({5, 20}, 1.0, 2);
  embedding_backward(context, weight, saved, dy);
  const at::Tensor expected = at::zeros({7, 20}).index_add(0, tokens, dy.to(at::kFloat));
  EXPECT_LT(oracle::relative_error(weight.gradient, expected), 1e-6);
}

// More logits than one chunk holds: chunks must not show.
TEST(Head, AgreesWithAutogradAcrossChunks) {
  const LayerContext context = cpu_context(recipe("bf16"));
  const std::int64_t tokens = 300, hidden = 12, vocab = 132'000;
  ASSERT_LT(head_chunk_tokens(vocab, tokens), tokens);
  ParameterRegistry registry;
  HeadWeights weights{&random_parameter(registry, "norm", {hidden}, 1),
                      &random_parameter(registry, "head", {vocab, hidden}, 2), 1e-5f};
  const at::Tensor h = random_bf16({tokens, hidden}, 1.0, 3);
  HeadTargets targets{at::arange(tokens).mul(61).remainder(vocab).to(at::kInt),
                      at::arange(tokens).remainder(3).ne(0).to(at::kFloat), 1.0f / 200};
  const HeadResult result = head_forward_backward(context, weights, final_norm_saved(context, h), targets);
  EXPECT_DOUBLE_EQ(result.loss_sum.item<double>(), head_loss(context, weights, h, targets));

  const at::Tensor he = exact(h), ne = exact(weights.norm->value), we = exact(weights.head->value);
  const at::Tensor y = he * at::rsqrt(he.square().mean(-1, true) + 1e-5) * ne;
  const at::Tensor losses =
      at::cross_entropy_loss(at::linear(y, we), targets.targets.to(at::kLong), {}, at::Reduction::None);
  const at::Tensor loss = (losses * targets.mask.to(at::kDouble)).sum();
  (loss / 200).backward();
  // Roundings on the way: y; the gradient of the logits; of y; and the result.
  EXPECT_NEAR(result.loss_sum.item<double>(), loss.item<double>(), kBf16Rounding * loss.item<double>());
  EXPECT_LT(oracle::relative_error(result.dh.value, he.grad()), 4 * kBf16Rounding);
  EXPECT_LT(oracle::relative_error(weights.head->gradient, we.grad()), 4 * kBf16Rounding);
  EXPECT_LT(oracle::relative_error(weights.norm->gradient, ne.grad()), 4 * kBf16Rounding);
}

TEST(RowsOf, CutsCodesAndScales) {
  const TensorFormat format{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16};
  StoredTensor stored = empty_stored(format, 5, 40, at::kCPU);
  const Matrix rows = rows_of(stored.view(), 2, 2);
  EXPECT_EQ(rows.rows, 2);
  EXPECT_EQ(rows.data, stored.data.const_data_ptr<std::uint8_t>() + 2 * 40);
  EXPECT_EQ(rows.scale, stored.scale.const_data_ptr<at::BFloat16>() + 2 * 3);
}

}  // namespace
}  // namespace coat::layers
