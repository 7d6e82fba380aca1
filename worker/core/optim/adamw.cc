#include "worker/core/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "worker/core/base/cuda_device.h"
#include "worker/core/quant/expansion.h"

namespace coat {
namespace {

std::int64_t bytes_of_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

}  // namespace

AdamW::AdamW(ParameterRegistry& parameters, const Recipe& recipe, const AdamWOptions& options,
             const kernels::Kernels& kernels)
    : parameters_(parameters),
      options_(options),
      kernels_(kernels),
      format1_(recipe.moment1),
      format2_(recipe.moment2) {
  const auto zero_moment = [](const Parameter& parameter, const MomentFormat& format) {
    const auto on_device = parameter.value.options();
    if (format.format == Format::kFp32) return Moment{at::zeros(parameter.value.sizes(), on_device), {}, {}};
    const std::int64_t groups = (parameter.value.numel() + format.group - 1) / format.group;
    return Moment{at::zeros(parameter.value.sizes(), on_device.dtype(at::kByte)),
                  at::zeros({groups}, on_device), at::full({groups}, kMaxK16, on_device.dtype(at::kByte))};
  };
  for (const Parameter* parameter : parameters_.all()) {
    moment1_.push_back(zero_moment(*parameter, format1_));
    moment2_.push_back(zero_moment(*parameter, format2_));
  }
}

kernels::Stream AdamW::stream() const {
  return {cuda_device::current_stream(parameters_.all().front()->value.device())};
}

double AdamW::gradient_norm() const {
  const auto device = parameters_.all().front()->gradient.device();
  at::Tensor sum = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (const Parameter* parameter : parameters_.all()) {
    kernels_.sum_of_squares(parameter->gradient.const_data_ptr<float>(), parameter->gradient.numel(),
                            sum.mutable_data_ptr<double>(), stream());
  }
  return std::sqrt(sum.item<double>());
}

kernels::AdamWTensor AdamW::tensor_of(std::size_t index) {
  const Parameter& parameter = *parameters_.all()[index];
  const auto amax = [](const Moment& moment) {
    return moment.amax.defined() ? moment.amax.data_ptr<float>() : nullptr;
  };
  const auto k16 = [](const Moment& moment) {
    return moment.k16.defined() ? moment.k16.data_ptr<std::uint8_t>() : nullptr;
  };
  const Moment& m = moment1_[index];
  const Moment& v = moment2_[index];
  kernels::AdamWTensor tensor;
  tensor.value = parameter.value.data_ptr<float>();
  tensor.gradient = parameter.gradient.const_data_ptr<float>();
  tensor.elements = parameter.value.numel();
  tensor.m = m.data.data_ptr();
  tensor.m_amax = amax(m);
  tensor.m_k16 = k16(m);
  tensor.v = v.data.data_ptr();
  tensor.v_amax = amax(v);
  tensor.v_k16 = k16(v);
  tensor.decay = parameter.decay;
  tensor.id = parameter.id;
  return tensor;
}

AdamWStepResult AdamW::step(std::uint64_t step, double learning_rate, bool measure) {
  AdamWStepResult result;
  if (parameters_.all().empty()) return result;
  result.grad_norm = gradient_norm();
  if (!std::isfinite(result.grad_norm)) {
    result.skipped = true;
    return result;
  }
  const bool clips = options_.clip_norm > 0 && result.grad_norm > options_.clip_norm;
  const at::Tensor factor = at::full({1}, clips ? options_.clip_norm / result.grad_norm : 1.0,
                                     parameters_.all().front()->gradient.options());
  kernels::AdamWArgs args;
  for (std::size_t i = 0; i < parameters_.all().size(); ++i) args.tensors.push_back(tensor_of(i));
  args.moment1 = format1_;
  args.moment2 = format2_;
  args.learning_rate = static_cast<float>(learning_rate);
  args.beta1 = static_cast<float>(options_.beta1);
  args.beta2 = static_cast<float>(options_.beta2);
  args.eps = static_cast<float>(options_.eps);
  args.weight_decay = static_cast<float>(options_.weight_decay);
  args.bias_correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(step));
  args.bias_correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(step));
  args.gradient_scale = factor.const_data_ptr<float>();
  args.seed = options_.seed;
  args.step = step;
  if (measure) {
    kernels_.adamw_measured(args, &result.moment1, &result.moment2, stream());
  } else {
    kernels_.adamw(args, stream());
  }
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto append = [&tensors](const std::string& name, const Moment& moment) {
    tensors.emplace_back(name, moment.data);
    if (!moment.amax.defined()) return;
    tensors.emplace_back(name + ".amax", moment.amax);
    tensors.emplace_back(name + ".k16", moment.k16);
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
    bytes += bytes_of_tensor(moment.data) + bytes_of_tensor(moment.amax) + bytes_of_tensor(moment.k16);
  }
  return bytes;
}

std::int64_t AdamW::moment1_bytes() const { return moment_bytes(moment1_); }
std::int64_t AdamW::moment2_bytes() const { return moment_bytes(moment2_); }

}  // namespace coat
