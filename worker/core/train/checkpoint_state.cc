#include "worker/core/train/checkpoint_state.h"

#include <cstdio>
#include <stdexcept>

#include "worker/core/quant/moment_format.h"

namespace coat::train {
namespace {

std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string text_of(const MomentFormat& format) {
  std::string text = name_of(format.code);
  if (!format.is_quantized()) return text;
  text += "/group " + std::to_string(format.group) + "/amax " + name_of(format.amax_format);
  if (format.expand) text += "/bound " + text_of(format.range_bound);
  return text;
}

std::string dtype_name(at::ScalarType type) {
  if (type == at::kFloat) return "float32";
  if (type == at::kByte) return "uint8";
  if (type == at::kChar) return "int8";
  if (type == at::kBFloat16) return "bfloat16";
  throw std::logic_error("a checkpoint holds no tensors of this type");
}

}  // namespace

Identity spec_identity(const spec::JobSpec& spec, const Recipe& format) {
  const spec::ModelSpec& model = spec.model;
  return {{"model.vocab_size", std::to_string(model.vocab_size)},
          {"model.hidden", std::to_string(model.hidden)},
          {"model.intermediate", std::to_string(model.intermediate)},
          {"model.layers", std::to_string(model.layers)},
          {"model.heads", std::to_string(model.heads)},
          {"model.kv_heads", std::to_string(model.kv_heads)},
          {"model.norm_eps", text_of(model.norm_eps)},
          {"model.rope_theta", text_of(model.rope_theta)},
          {"model.tie_embeddings", model.tie_embeddings ? "true" : "false"},
          {"recipe", spec.recipe},
          {"recipe.moment1", text_of(format.moment1)},
          {"recipe.moment2", text_of(format.moment2)},
          {"data.format", spec.data.format},
          {"training.sequence_length", std::to_string(spec.training.sequence_length)},
          {"training.seed", std::to_string(spec.training.seed)}};
}

Identity data_identity(const data::DataIdentity& data) {
  return {{"data.bytes", std::to_string(data.bytes)}, {"data.sha256", data.sha256}};
}

HostViews::HostViews(const std::vector<std::pair<std::string, at::Tensor>>& tensors, bool for_load) {
  for (const auto& [name, tensor] : tensors) {
    at::Tensor host = tensor;
    if (!tensor.device().is_cpu()) {
      host = tensor.to(at::kCPU);
      if (for_load) staged_.emplace_back(host, tensor);
    }
    if (!host.is_contiguous()) throw std::logic_error("'" + name + "' is not contiguous");
    views_.push_back({.name = name,
                      .dtype = dtype_name(host.scalar_type()),
                      .shape = host.sizes().vec(),
                      .data = host.mutable_data_ptr(),
                      .bytes = static_cast<std::int64_t>(host.nbytes())});
    if (!tensor.device().is_cpu() && !for_load) staged_.emplace_back(host, at::Tensor());
  }
}

void HostViews::write_back() {
  for (auto& [host, device] : staged_) {
    if (device.defined()) device.copy_(host);
  }
}

std::vector<std::pair<std::string, at::Tensor>> parameter_tensors(ParameterRegistry& parameters) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Parameter* parameter : parameters.all()) {
    tensors.emplace_back(parameter->name, parameter->value);
    if (parameter->residual.defined())
      tensors.emplace_back(parameter->name + ".residual", parameter->residual);
  }
  return tensors;
}

}  // namespace coat::train
