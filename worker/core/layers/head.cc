#include "worker/core/layers/head.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

#include "worker/core/layers/operand.h"

namespace coat::layers {
namespace {

at::Tensor bf16_weight(const LayerContext& context, const Parameter& weight) {
  return weight_operand(context, weight.value, kPlainBf16, OperandUse::kForward).rows.data;
}

at::Tensor zero_loss(const LayerContext& context) {
  return at::zeros({1}, at::TensorOptions(context.device).dtype(at::kDouble));
}

// Rows [first, first + count) of the head's products and loss.
struct Chunk {
  const LayerContext& context;
  const HeadTargets& targets;
  const at::Tensor& weight;  // BF16 [vocab, hidden]
  std::int64_t first;
  std::int64_t count;

  // The loss of these rows is added to `loss_sum`; what is returned holds the logits' gradient, FP32.
  Matrix loss_of(const at::Tensor& y, const at::Tensor& logits, const at::Tensor& loss_sum) const {
    const Matrix rows = rows_of(matrix_of(logits), 0, count);
    context.kernels.gemm({.a = rows_of(matrix_of(y), first, count), .b = matrix_of(weight), .out = rows},
                         context.stream);
    const float* mask = targets.mask.defined() ? targets.mask.const_data_ptr<float>() + first : nullptr;
    context.kernels.cross_entropy({.logits = rows,
                                   .targets = targets.targets.const_data_ptr<std::int32_t>() + first,
                                   .mask = mask,
                                   .gradient_scale = targets.gradient_scale,
                                   .loss_sum = loss_sum.mutable_data_ptr<double>()},
                                  context.stream);
    return rows;
  }

  // Reads the rows of y for the weight's gradient, then overwrites them with their own gradient.
  void backward(const at::Tensor& y, const Matrix& dlogits, Parameter& head) const {
    const Matrix y_rows = rows_of(matrix_of(y), first, count);
    context.kernels.gemm({.a = dlogits,
                          .b = y_rows,
                          .a_layout = kernels::Layout::kMnMajor,
                          .b_layout = kernels::Layout::kMnMajor,
                          .out = matrix_of(head.gradient),
                          .accumulate = true},
                         context.stream);
    context.kernels.gemm(
        {.a = dlogits, .b = matrix_of(weight), .b_layout = kernels::Layout::kMnMajor, .out = y_rows},
        context.stream);
  }
};

template <typename Body>
void for_each_chunk(std::int64_t tokens, std::int64_t step, const Body& body) {
  for (std::int64_t first = 0; first < tokens; first += step) body(first, std::min(step, tokens - first));
}

// y := its gradient. Returns the sum of the losses.
at::Tensor losses_and_gradients(const LayerContext& context, const HeadWeights& weights,
                                const HeadTargets& targets, const at::Tensor& y) {
  const std::int64_t vocab = weights.head->value.size(0);
  const std::int64_t step = head_chunk_tokens(vocab, y.size(0));
  const at::Tensor weight = bf16_weight(context, *weights.head);
  const at::Tensor logits = empty_fp32(context, {step, vocab});
  const at::Tensor rounded = empty_bf16(context, step, vocab);
  const at::Tensor loss_sum = zero_loss(context);
  for_each_chunk(y.size(0), step, [&](std::int64_t first, std::int64_t count) {
    const Chunk chunk{context, targets, weight, first, count};
    const Matrix gradient = chunk.loss_of(y, logits, loss_sum);
    const Matrix dlogits = rows_of(matrix_of(rounded), 0, count);
    context.kernels.quantize({.in = gradient, .out = dlogits}, context.stream);
    chunk.backward(y, dlogits, *weights.head);
  });
  return loss_sum;
}

}  // namespace

std::int64_t head_chunk_tokens(std::int64_t vocab, std::int64_t tokens) {
  constexpr std::int64_t kLogitBytes = 128 << 20;
  constexpr std::int64_t kUnit = 256;
  return std::min(tokens, std::max(kUnit, kLogitBytes / (4 * vocab) / kUnit * kUnit));
}

RmsNormSaved final_norm_saved(const LayerContext& context, const at::Tensor& h) {
  return {as_stored(h), empty_fp32(context, {h.size(0)}), {}};
}

HeadResult head_forward_backward(const LayerContext& context, const HeadWeights& weights, RmsNormSaved saved,
                                 const HeadTargets& targets) {
  HeadResult result;
  at::Tensor y = rms_norm_recompute(context, *weights.norm, weights.norm_eps, kPlainBf16, saved).value;
  result.loss_sum = losses_and_gradients(context, weights, targets, y);
  result.dh = {rms_norm_backward(context, *weights.norm, saved, y), {}};
  return result;
}

double head_loss(const LayerContext& context, const HeadWeights& weights, const at::Tensor& h,
                 const HeadTargets& targets) {
  const RmsNormSaved saved = final_norm_saved(context, h);
  const at::Tensor y = rms_norm_recompute(context, *weights.norm, weights.norm_eps, kPlainBf16, saved).value;
  const std::int64_t vocab = weights.head->value.size(0);
  const std::int64_t step = head_chunk_tokens(vocab, y.size(0));
  const at::Tensor weight = bf16_weight(context, *weights.head);
  const at::Tensor logits = empty_fp32(context, {step, vocab});
  const at::Tensor loss_sum = zero_loss(context);
  for_each_chunk(y.size(0), step, [&](std::int64_t first, std::int64_t count) {
    Chunk{context, targets, weight, first, count}.loss_of(y, logits, loss_sum);
  });
  return loss_sum.item<double>();
}

at::Tensor head_logits(const LayerContext& context, const HeadWeights& weights, const at::Tensor& h) {
  const RmsNormSaved saved = final_norm_saved(context, h);
  const at::Tensor y = rms_norm_recompute(context, *weights.norm, weights.norm_eps, kPlainBf16, saved).value;
  at::Tensor logits = empty_fp32(context, {h.size(0), weights.head->value.size(0)});
  context.kernels.gemm(
      {.a = matrix_of(y), .b = matrix_of(bf16_weight(context, *weights.head)), .out = matrix_of(logits)},
      context.stream);
  return logits;
}

}  // namespace coat::layers
