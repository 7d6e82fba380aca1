#include "worker/core/train/quantization_figures.h"

#include <cmath>
#include <string>

namespace coat::train {
namespace {

QuantizationFigure figure(const char* tensor_class, const std::string& format,
                          const kernels::ErrorSums& sums) {
  QuantizationFigure result{.tensor_class = tensor_class, .format = format};
  if (sums.error_squared != 0) result.relative_error = std::sqrt(sums.error_squared / sums.reference_squared);
  result.saturated_fraction = sums.saturated / sums.elements;
  result.underflow_fraction = sums.underflowed / sums.elements;
  if (sums.k_groups == 0) return result;
  result.mean_expansion = sums.k_sum / sums.k_groups;
  double groups = 0;
  for (std::size_t bucket = 0; bucket < sums.k_histogram.size(); ++bucket) {
    groups += sums.k_histogram[bucket];
    result.expansion.push_back({kernels::exponent_bucket_end(bucket), groups / sums.k_groups});
  }
  return result;
}

}  // namespace

std::vector<QuantizationFigure> quantization_figures(const Recipe& recipe, const QuantizationProbe& probe,
                                                     const AdamWStepResult& step) {
  std::vector<QuantizationFigure> figures;
  const auto add = [&](const char* tensor_class, const std::string& format, const kernels::ErrorSums& sums) {
    if (sums.elements > 0) figures.push_back(figure(tensor_class, format, sums));
  };
  const auto add_class = [&](const char* tensor_class, Format format) {
    const auto found = probe.classes.find(tensor_class);
    if (found != probe.classes.end()) add(tensor_class, name_of(format), found->second);
  };
  add_class("activation", recipe.linear_operand.format);
  add_class("weight", recipe.linear_operand.format);
  add_class("gradient", recipe.linear_gradient.format);
  const bool quantized1 = recipe.moment1.is_quantized(), quantized2 = recipe.moment2.is_quantized();
  const std::string code1 = name_of(recipe.moment1.code), code2 = name_of(recipe.moment2.code);
  if (quantized1) add("moment1", code1, step.errors.moment1);
  if (quantized2) add("moment2", code2, step.errors.moment2);
  if (quantized1 || quantized2) add("update", code1 + "+" + code2, step.errors.update);
  return figures;
}

}  // namespace coat::train
