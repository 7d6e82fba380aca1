// A Llama written with libtorch's autograd: the oracle of the explicit passes, in any dtype, with or without
// a recipe's rounding.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "spec/job_spec.h"
#include "worker/core/model/language_model.h"

namespace coat::oracle {

enum class AttentionKind : std::uint8_t {
  kWritten,  // softmax written out: in FP64, for comparison
  kFused,    // scaled_dot_product_attention: what an eager program calls
};

// How the oracle computes. Where `emulated` is given, every tensor that the recipe stores is rounded to its
// format at the same places (a straightforward implementation in the same precision); arithmetic between
// stays in `dtype`.
struct Arithmetic {
  at::ScalarType dtype = at::kDouble;
  const Recipe* emulated = nullptr;
  AttentionKind attention = AttentionKind::kWritten;
};

using Weights = std::map<std::string, at::Tensor>;

// Detached copies of the registry's values that require gradients.
Weights weights_of(const ParameterRegistry& parameters, at::ScalarType dtype);

// One decoder layer, [T, hidden] -> [T, hidden]; prefix "model.layers.0.".
at::Tensor decoder_block(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                         const std::string& prefix, const at::Tensor& h, std::int64_t sequences,
                         std::int64_t length);

// FP64 or FP32 [T, vocab].
at::Tensor logits(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                  const at::Tensor& tokens, std::int64_t sequences, std::int64_t length);

// The sum of the losses of the targets that count; backward() on it fills the weights' gradients.
at::Tensor loss_sum(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                    const MicroBatch& batch);

}  // namespace coat::oracle
