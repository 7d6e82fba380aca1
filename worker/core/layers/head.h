// Final norm, head and cross-entropy, in BF16 products with FP32 sums (COAT.md 1.6). The logits are never
// whole: they are made, turned into their gradient and used up for one chunk of tokens after another.
#pragma once

#include "worker/core/base/parameter.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/rms_norm.h"

namespace coat::layers {

struct HeadWeights {
  Parameter* norm = nullptr;  // [hidden]
  Parameter* head = nullptr;  // [vocab, hidden]; the embedding's weight where they are tied
  float norm_eps = 0;
};

struct HeadTargets {
  at::Tensor targets;  // int32 [T]
  at::Tensor mask;     // FP32 [T]; undefined: every target counts
  float gradient_scale = 0;
};

struct HeadResult {
  at::Tensor loss_sum;  // FP64 [1] on the device: nats, over the targets that count
  BoundedTensor dh;     // BF16 [T, hidden], bound for recipe.linear_gradient
};

// What the final norm saves for `h`: it has no other input to backward than these.
RmsNormSaved final_norm_saved(const LayerContext& context, const at::Tensor& h);

// Forward and backward at once; adds the gradients of norm and head. `saved` is taken, so h's memory ends
// with the norm.
HeadResult head_forward_backward(const LayerContext& context, const HeadWeights& weights, RmsNormSaved saved,
                                 const HeadTargets& targets);

// The loss alone.
double head_loss(const LayerContext& context, const HeadWeights& weights, const at::Tensor& h,
                 const HeadTargets& targets);

// FP32 logits [rows, vocab] of every row of h.
at::Tensor head_logits(const LayerContext& context, const HeadWeights& weights, const at::Tensor& h);

// Tokens whose logits exist at once: up to 128 MiB of FP32 logits, at least 256 tokens. Fewer would make the
// weight's FP32 gradient, to which each chunk adds, the longest way to memory: 256 tokens of 32,000 logits
// reached 300 TFLOP/s on an H200.
std::int64_t head_chunk_tokens(std::int64_t vocab, std::int64_t tokens);

}  // namespace coat::layers
