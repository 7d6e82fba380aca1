#include "worker/core/base/parameter.h"

#include <stdexcept>

#include <ATen/ops/zeros.h>

namespace coat {

Parameter& ParameterRegistry::add(const std::string& name, at::IntArrayRef shape, bool decay,
                                  at::Device device) {
  for (const Parameter* parameter : order_) {
    if (parameter->name == name) throw std::logic_error("the parameter '" + name + "' is already registered");
  }
  auto parameter = std::make_unique<Parameter>();
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  parameter->name = name;
  parameter->value = at::zeros(shape, options);
  parameter->gradient = at::zeros(shape, options);
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
