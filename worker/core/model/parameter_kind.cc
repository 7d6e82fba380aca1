#include "worker/core/model/parameter_kind.h"

#include <c10/core/ScalarType.h>

#include "worker/core/quant/stored_tensor.h"

namespace coat {

ParameterStorage storage_of(const Recipe& recipe, ParameterKind kind) {
  ParameterStorage storage;
  if (kind == ParameterKind::kVector) return storage;
  if (recipe.weights != WeightFormat::kFp32) storage.value = at::kBFloat16;
  storage.residual = recipe.weights == WeightFormat::kBf16Residual;
  if (kind == ParameterKind::kLinear) storage.gradient = scalar_type_of(recipe.weight_gradient);
  return storage;
}

ParameterBytes bytes_of(const ParameterStorage& storage, std::int64_t elements) {
  const auto size = [](at::ScalarType type) { return static_cast<std::int64_t>(c10::elementSize(type)); };
  return {elements * (size(storage.value) + (storage.residual ? 1 : 0)), elements * size(storage.gradient)};
}

}  // namespace coat
