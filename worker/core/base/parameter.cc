#include "worker/core/base/parameter.h"

#include <stdexcept>

#include <ATen/ops/zeros.h>

namespace coat {
namespace {

void require_known(const std::string& name, const ParameterStorage& storage) {
  const auto known = [](at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; };
  if (!known(storage.value) || !known(storage.gradient)) {
    throw std::logic_error("the parameter '" + name + "' and its gradient must be FP32 or BF16");
  }
  if (storage.residual && storage.value != at::kBFloat16) {
    throw std::logic_error("the parameter '" + name + "' is FP32: it has no residual");
  }
}

}  // namespace

Parameter& ParameterRegistry::add(const std::string& name, at::IntArrayRef shape, bool decay,
                                  at::Device device, const ParameterStorage& storage) {
  for (const Parameter* parameter : order_) {
    if (parameter->name == name) throw std::logic_error("the parameter '" + name + "' is already registered");
  }
  require_known(name, storage);
  auto parameter = std::make_unique<Parameter>();
  const auto options = at::TensorOptions().device(device);
  parameter->name = name;
  parameter->value = at::zeros(shape, options.dtype(storage.value));
  if (storage.residual) parameter->residual = at::zeros(shape, options.dtype(at::kChar));
  parameter->gradient = at::zeros(shape, options.dtype(storage.gradient));
  parameter->decay = decay;
  parameter->id = static_cast<std::uint32_t>(order_.size());
  order_.push_back(parameter.get());
  storage_.push_back(std::move(parameter));
  return *order_.back();
}

Parameter& ParameterRegistry::find(const std::string& name) const {
  for (Parameter* parameter : order_) {
    if (parameter->name == name) return *parameter;
  }
  throw std::out_of_range("no parameter is named '" + name + "'");
}

std::int64_t ParameterRegistry::element_count() const {
  std::int64_t count = 0;
  for (const Parameter* parameter : order_) count += parameter->value.numel();
  return count;
}

void ParameterRegistry::zero_gradients() {
  for (Parameter* parameter : order_) parameter->gradient.zero_();
}

}  // namespace coat
