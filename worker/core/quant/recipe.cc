#include "worker/core/quant/recipe.h"

#include "worker/core/base/error.h"

namespace coat {
namespace {

constexpr TensorFormat kBf16Matrix{Format::kBf16, Scaling::kNone, 0, ScaleFormat::kFp32};

// Saved activations in FP8 with nothing saved twice, gradients in E5M2, moments in octave codes, weights of
// 24 bits: 7.1 bytes a parameter. A weight's gradient comes of E5M2 with 5 % of error, so BF16 holds the sum
// of a few hundred micro-batches.
Recipe coat_recipe() {
  Recipe recipe;
  recipe.name = "coat";
  recipe.linear_operand = {Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kFp32};
  recipe.linear_gradient = {Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kFp32};
  recipe.saved_nonlinear = {Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16};
  recipe.saved_attention = kBf16Matrix;
  // One byte each; why these: NOTES.md.
  recipe.moment1 = moment_format(MomentCode::kOctave8, /*expand=*/true, 128, Rounding::kStochastic);
  recipe.moment2 = moment_format(MomentCode::kOctave8Unsigned, /*expand=*/true, 128, Rounding::kStochastic);
  recipe.weights = WeightFormat::kBf16Residual;
  recipe.weight_gradient = Format::kBf16;
  return recipe;
}

// The reference implementation's flow, step by step (COAT.md 1.4 and 1.5): its scales, roundings and saved
// tensors. Not followed: its FP32 quotients x / s are products with 1 / s here, norm weights' gradients are
// summed in FP32 without locks, and head and embedding are those of every recipe.
Recipe coat_paper_recipe() {
  Recipe recipe;
  recipe.name = "coat-paper";
  recipe.linear_operand = {Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kBf16, kReferenceTensorRule};
  recipe.linear_gradient = {Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kBf16, kReferenceTensorRule};
  recipe.saved_nonlinear = {Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16, kReferenceGroupRule};
  recipe.saved_attention = kBf16Matrix;
  recipe.weight_values = Format::kBf16;
  recipe.save_norm_output = true;
  recipe.save_activation = true;
  recipe.save_product = true;
  recipe.product_reads_saved_activation = true;
  recipe.round_activation_gradient = true;
  recipe.weight_gradient_product = Format::kBf16;
  recipe.input_gradient_sum = Format::kBf16;
  recipe.moment1 = moment_format(MomentCode::kE4M3, /*expand=*/true, 128, Rounding::kNearestEven);
  recipe.moment2 = recipe.moment1;
  return recipe;
}

// Ordinary mixed precision: BF16 products, FP32 master weights and moments, every intermediate result kept.
Recipe bf16_recipe() {
  Recipe recipe;
  recipe.name = "bf16";
  recipe.linear_operand = kBf16Matrix;
  recipe.linear_gradient = kBf16Matrix;
  recipe.saved_nonlinear = kBf16Matrix;
  recipe.saved_attention = kBf16Matrix;
  recipe.save_norm_output = true;
  recipe.save_activation = true;
  recipe.save_product = true;
  return recipe;
}

const std::vector<Recipe>& presets() {
  static const std::vector<Recipe> all = {coat_recipe(), coat_paper_recipe(), bf16_recipe()};
  return all;
}

}  // namespace

std::vector<std::string> recipe_preset_names() {
  std::vector<std::string> names;
  for (const Recipe& preset : presets()) names.push_back(preset.name);
  return names;
}

const Recipe& recipe(const std::string& name) {
  std::string known;
  for (const Recipe& preset : presets()) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  throw SpecError("recipe", "there is no recipe '" + name + "'", "use one of: " + known);
}

}  // namespace coat
