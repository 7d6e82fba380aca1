#include "worker/core/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "worker/core/base/cuda_device.h"
#include "worker/core/quant/moment_table.h"

namespace coat {
namespace {

std::int64_t bytes_of_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

void* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

WeightFormat weight_format(const Parameter& parameter) {
  if (parameter.value.scalar_type() == at::kFloat) return WeightFormat::kFp32;
  return parameter.residual.defined() ? WeightFormat::kBf16Residual : WeightFormat::kBf16Stochastic;
}

Format gradient_format(const Parameter& parameter) {
  return parameter.gradient.scalar_type() == at::kFloat ? Format::kFp32 : Format::kBf16;
}

}  // namespace

AdamW::AdamW(ParameterRegistry& parameters, const Recipe& recipe, const AdamWOptions& options,
             const kernels::Kernels& kernels)
    : parameters_(parameters),
      options_(options),
      kernels_(kernels),
      format1_(recipe.moment1),
      format2_(recipe.moment2) {
  require_usable(format1_, MomentUse::kFirst);
  require_usable(format2_, MomentUse::kSecond);
  const auto zero_moment = [](const Parameter& parameter, const MomentFormat& format) {
    const auto on_device = at::TensorOptions().device(parameter.value.device());
    if (!format.is_quantized()) {
      return Moment{at::zeros(parameter.value.sizes(), on_device.dtype(at::kFloat)), {}, {}};
    }
    const std::int64_t groups = format.groups(parameter.value.numel());
    const at::ScalarType amax = format.amax_format == Format::kBf16 ? at::kBFloat16 : at::kFloat;
    Moment moment{at::zeros(parameter.value.sizes(), on_device.dtype(at::kByte)),
                  at::zeros({groups}, on_device.dtype(amax)),
                  {}};
    if (format.stores_row()) moment.row = at::full({groups}, kLastRow, on_device.dtype(at::kByte));
    return moment;
  };
  for (std::size_t i = 0; i < parameters_.all().size(); ++i) {
    const Parameter& parameter = *parameters_.all()[i];
    moment1_.push_back(zero_moment(parameter, format1_));
    moment2_.push_back(zero_moment(parameter, format2_));
    const WeightFormat weights = weight_format(parameter);
    const Format gradient = gradient_format(parameter);
    auto batch = std::find_if(batches_.begin(), batches_.end(), [&](const Batch& other) {
      return other.weights == weights && other.gradient == gradient;
    });
    if (batch == batches_.end()) batch = batches_.insert(batch, {weights, gradient, {}});
    batch->parameters.push_back(i);
  }
  if (parameters_.all().empty()) return;
  const auto on_device = at::TensorOptions().device(parameters_.all().front()->value.device());
  sum_of_squares_ = at::zeros({1}, on_device.dtype(at::kDouble));
  clip_factor_ = at::zeros({1}, on_device.dtype(at::kFloat));
}

kernels::Stream AdamW::stream() const {
  return {cuda_device::current_stream(parameters_.all().front()->value.device())};
}

void AdamW::find_clip_factor() {
  sum_of_squares_.zero_();
  auto* sum = sum_of_squares_.mutable_data_ptr<double>();
  std::vector<kernels::SquaredArray> gradients;
  for (const Parameter* parameter : parameters_.all()) {
    gradients.push_back(
        {parameter->gradient.const_data_ptr(), gradient_format(*parameter), parameter->gradient.numel()});
  }
  kernels_.sum_of_squares(gradients, sum, stream());
  kernels_.clip_factor({.sum_of_squares = sum,
                        .clip_norm = options_.clip_norm,
                        .factor = clip_factor_.mutable_data_ptr<float>()},
                       stream());
}

kernels::AdamWTensor AdamW::tensor_of(std::size_t index) const {
  const Parameter& parameter = *parameters_.all()[index];
  const auto moment = [](const Moment& tensors) {
    return kernels::MomentData{data_of(tensors.data), data_of(tensors.amax),
                               static_cast<std::uint8_t*>(data_of(tensors.row))};
  };
  kernels::AdamWTensor tensor;
  tensor.value = parameter.value.data_ptr();
  tensor.residual = static_cast<std::int8_t*>(data_of(parameter.residual));
  tensor.gradient = parameter.gradient.const_data_ptr();
  tensor.elements = parameter.value.numel();
  tensor.m = moment(moment1_[index]);
  tensor.v = moment(moment2_[index]);
  tensor.decay = parameter.decay;
  tensor.id = parameter.id;
  return tensor;
}

kernels::AdamWArgs AdamW::args_of_step(std::uint64_t step, double learning_rate) const {
  kernels::AdamWArgs args;
  args.moment1 = format1_;
  args.moment2 = format2_;
  args.learning_rate = static_cast<float>(learning_rate);
  args.beta1 = static_cast<float>(options_.beta1);
  args.beta2 = static_cast<float>(options_.beta2);
  args.eps = static_cast<float>(options_.eps);
  args.weight_decay = static_cast<float>(options_.weight_decay);
  args.bias_correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(step));
  args.bias_correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(step));
  args.gradient_scale = clip_factor_.const_data_ptr<float>();
  args.seed = options_.seed;
  args.step = step;
  return args;
}

void AdamW::step(std::uint64_t step, double learning_rate, bool measure) {
  errors_ = {};
  if (parameters_.all().empty()) return;
  find_clip_factor();
  kernels::AdamWArgs args = args_of_step(step, learning_rate);
  for (const Batch& batch : batches_) {
    args.weights = batch.weights;
    args.gradient = batch.gradient;
    args.tensors.clear();
    for (const std::size_t index : batch.parameters) args.tensors.push_back(tensor_of(index));
    if (measure) {
      kernels_.adamw_measured(args, &errors_, stream());
    } else {
      kernels_.adamw(args, stream());
    }
  }
}

AdamWStepResult AdamW::result() const {
  AdamWStepResult result;
  if (parameters_.all().empty()) return result;
  result.grad_norm = std::sqrt(sum_of_squares_.item<double>());
  result.skipped = !std::isfinite(result.grad_norm);
  result.errors = errors_;
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto append = [&tensors](const std::string& name, const Moment& moment) {
    tensors.emplace_back(name, moment.data);
    if (moment.amax.defined()) tensors.emplace_back(name + ".amax", moment.amax);
    if (moment.row.defined()) tensors.emplace_back(name + ".row", moment.row);
  };
  for (std::size_t i = 0; i < parameters_.all().size(); ++i) {
    append(parameters_.all()[i]->name + ".moment1", moment1_[i]);
    append(parameters_.all()[i]->name + ".moment2", moment2_[i]);
  }
  return tensors;
}

std::int64_t AdamW::moment_bytes(const std::vector<Moment>& moments) {
  std::int64_t bytes = 0;
  for (const Moment& moment : moments) {
    bytes += bytes_of_tensor(moment.data) + bytes_of_tensor(moment.amax) + bytes_of_tensor(moment.row);
  }
  return bytes;
}

std::int64_t AdamW::moment1_bytes() const { return moment_bytes(moment1_); }
std::int64_t AdamW::moment2_bytes() const { return moment_bytes(moment2_); }

}  // namespace coat
