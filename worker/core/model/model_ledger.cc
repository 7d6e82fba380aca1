#include "worker/core/model/model_ledger.h"

#include <initializer_list>

namespace coat {
namespace {

constexpr std::int64_t kFp32Bytes = 4;
constexpr std::int64_t kBf16Bytes = 2;

std::int64_t kv_width(const spec::ModelSpec& model) { return model.hidden / model.heads * model.kv_heads; }

}  // namespace

std::vector<ParameterSize> parameter_sizes(const spec::ModelSpec& model) {
  const std::int64_t hidden = model.hidden;
  const ParameterSize vocabulary{model.vocab_size * hidden, ParameterKind::kVocabulary};
  const ParameterSize norm{hidden, ParameterKind::kVector};
  std::vector<ParameterSize> sizes = {vocabulary};
  const auto add_linear = [&](std::initializer_list<std::int64_t> outputs) {
    for (const std::int64_t out : outputs) sizes.push_back({out * hidden, ParameterKind::kLinear});
  };
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    sizes.push_back(norm);
    add_linear({hidden, kv_width(model), kv_width(model), hidden});
    sizes.push_back(norm);
    add_linear({model.intermediate, model.intermediate, model.intermediate});
  }
  sizes.push_back(norm);
  if (!model.tie_embeddings) sizes.push_back(vocabulary);
  return sizes;
}

std::int64_t parameter_count(const spec::ModelSpec& model) {
  std::int64_t count = 0;
  for (const ParameterSize& parameter : parameter_sizes(model)) count += parameter.elements;
  return count;
}

std::int64_t saved_bytes_of_layer(const spec::ModelSpec& model, const Recipe& recipe, std::int64_t tokens) {
  const auto in = [tokens](const TensorFormat& format, std::int64_t cols) {
    return format.total_bytes(tokens, cols);
  };
  const std::int64_t norm_inputs = 2 * (in(recipe.saved_nonlinear, model.hidden) + tokens * kFp32Bytes);
  const std::int64_t norm_outputs = recipe.save_norm_output ? 2 * in(recipe.linear_operand, model.hidden) : 0;
  const std::int64_t attention = 2 * in(recipe.saved_attention, model.hidden) +
                                 2 * in(recipe.saved_attention, kv_width(model)) +
                                 tokens * model.heads * kFp32Bytes;
  const std::int64_t gate_up = 2 * in(recipe.saved_nonlinear, model.intermediate);
  const std::int64_t activation = recipe.save_activation ? in(recipe.saved_nonlinear, model.intermediate) : 0;
  const std::int64_t product = recipe.save_product ? in(recipe.linear_operand, model.intermediate) : 0;
  // The largest magnitudes that what is quantized again is scaled with: the attention output, and what is
  // made again.
  const bool scaled = recipe.linear_operand.scaling == Scaling::kTensor;
  const std::int64_t made_again = 1 + (recipe.save_norm_output ? 0 : 2) + (recipe.save_product ? 0 : 1);
  return norm_inputs + norm_outputs + attention + gate_up + activation + product +
         (scaled ? made_again * kFp32Bytes : 0);
}

std::int64_t saved_bytes_of_model(const spec::ModelSpec& model, const Recipe& recipe, std::int64_t tokens) {
  const std::int64_t final_norm = tokens * (model.hidden * kBf16Bytes + kFp32Bytes);
  const std::int64_t token_ids = tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
  return model.layers * saved_bytes_of_layer(model, recipe, tokens) + final_norm + token_ids;
}

}  // namespace coat
