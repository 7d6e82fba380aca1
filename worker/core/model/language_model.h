// What the step loop needs of a model: parameters by name, one forward and backward pass over a micro-batch,
// and logits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "spec/job_spec.h"
#include "worker/core/base/parameter.h"
#include "worker/core/kernels/api/kernels.h"
#include "worker/core/layers/quantization_probe.h"
#include "worker/core/quant/recipe.h"

namespace coat {

// Tokens of `sequences` rows of `length`, int32 [sequences * length] on the model's device, row after row.
struct MicroBatch {
  at::Tensor tokens;
  at::Tensor targets;  // the next token of each
  at::Tensor mask;     // FP32, 1 where the target counts; undefined: all do
  std::int64_t sequences = 0;
  std::int64_t length = 0;
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual ParameterRegistry& parameters() = 0;

  // Adds gradient_scale * d(sum of the losses of counting tokens) to the gradients and returns that sum of
  // losses, nats: FP64 [1] on the model's device, so that the host need not wait for it. gradient_scale is
  // 1 / (counting tokens of the whole optimizer step), so that gradients are those of the mean loss however
  // the step is split into micro-batches.
  virtual at::Tensor add_gradients(const MicroBatch& batch, float gradient_scale,
                                   QuantizationProbe* probe) = 0;
  // The same, and waits for the sum.
  double forward_backward(const MicroBatch& batch, float gradient_scale, QuantizationProbe* probe) {
    return add_gradients(batch, gradient_scale, probe).item<double>();
  }

  // The sum of the losses alone; gradients and saved tensors are not made.
  virtual double loss(const MicroBatch& batch) = 0;

  // FP32 [vocab]: logits of the token after the last of `tokens` (int32 [n], n >= 1).
  virtual at::Tensor next_token_logits(const at::Tensor& tokens) = 0;

  // Bytes of the tensors saved by the latest add_gradients at its fullest point (after the last layer's
  // forward).
  virtual std::int64_t saved_bytes() const = 0;
};

// A decoder of the Llama family with freshly initialised weights: normal(0, 0.02), output projections of
// attention and MLP scaled by 1 / sqrt(2 layers), norms 1; each tensor's random numbers are keyed by (seed,
// its registry id), so they depend on neither device nor order. Throws SpecError for a shape that the recipe
// or the device cannot run.
std::unique_ptr<LanguageModel> make_llama(const spec::ModelSpec& model, const Recipe& recipe,
                                          const kernels::Kernels& kernels, at::Device device,
                                          std::uint64_t seed);

}  // namespace coat
