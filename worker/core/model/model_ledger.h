// Closed-form sizes of a Llama: parameters, what its layers save, and the largest transient of a pass.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/DeviceType.h>

#include "spec/job_spec.h"
#include "worker/core/model/parameter_kind.h"
#include "worker/core/quant/recipe.h"

namespace coat {

// Every parameter in registry order (the optimizer's groups never cross a tensor's border, so its bytes are a
// sum over these).
struct ParameterSize {
  std::int64_t elements = 0;
  ParameterKind kind = ParameterKind::kLinear;
  bool operator==(const ParameterSize&) const = default;
};
std::vector<ParameterSize> parameter_sizes(const spec::ModelSpec& model);
std::int64_t parameter_count(const spec::ModelSpec& model);

// Bytes saved for backward by one decoder layer for `tokens` tokens (COAT.md 1.4's table, for this recipe).
std::int64_t saved_bytes_of_layer(const spec::ModelSpec& model, const Recipe& recipe, std::int64_t tokens);
// ... by the whole model, with the final norm and the embedding's tokens.
std::int64_t saved_bytes_of_model(const spec::ModelSpec& model, const Recipe& recipe, std::int64_t tokens);

// One micro-batch: tokens = sequences * length.
struct BatchShape {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
};
// What a step holds at its peak beside parameters, gradients, moments and saved_bytes_of_model, on that kind
// of device: the twins decode operands of products, tensor cores read FP8 operands transposed as well.
std::int64_t workspace_bytes(const spec::ModelSpec& model, const Recipe& recipe, const BatchShape& batch,
                             c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace coat
