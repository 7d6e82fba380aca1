// The residual stream between layers, forward and backward.
#pragma once

#include "worker/core/layers/context.h"
#include "worker/core/layers/operand.h"

namespace coat::layers {

struct Residual {
  at::Tensor h;         // BF16 [T, hidden]
  StoredTensor stored;  // h in recipe.saved_nonlinear, which the next norm reads; shares h's memory where
                        // that is plain BF16
};

// What the norm after this residual reads.
enum class NextNorm : std::uint8_t {
  kStored,  // a layer's norm: the copy in recipe.saved_nonlinear
  kBf16,    // the final norm: h itself
};

// Memory for a residual, and where to write its quantized copy (data == nullptr: nowhere).
Residual empty_residual(const LayerContext& context, const at::Tensor& h, NextNorm next);
Matrix quantized_copy_of(Residual& residual);

// h + branch. The sum takes over the branch's memory, because the old h may be what a norm saved.
Residual add_branch(const LayerContext& context, const Residual& residual, const at::Tensor& branch,
                    NextNorm next);

// gradient + branch, in the gradient's memory: the whole gradient of the residual (never G plus its quantized
// copy: fact 28).
BoundedTensor add_gradient(const LayerContext& context, const at::Tensor& gradient, const at::Tensor& branch);

// Memory for the sum of several input gradients, in recipe.input_gradient_sum; and that sum in BF16, rounded
// here unless it is that already.
at::Tensor empty_gradient_sum(const LayerContext& context, std::int64_t rows, std::int64_t cols);
at::Tensor rounded_gradient_sum(const LayerContext& context, at::Tensor sum);

}  // namespace coat::layers
