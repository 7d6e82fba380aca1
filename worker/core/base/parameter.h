// The registry of a model's trainable tensors: stable names, one order, and the gradient beside each value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace coat {

// How a parameter is held between steps.
struct ParameterStorage {
  at::ScalarType value = at::kFloat;  // kFloat or kBFloat16
  bool residual = false;  // of kBFloat16: the value's next 8 bits beside it (quant/weight_format.h)
  at::ScalarType gradient = at::kFloat;  // kFloat or kBFloat16
};

struct Parameter {
  std::string name;      // as Hugging Face's Llama names it: "model.layers.0.self_attn.q_proj.weight"
  at::Tensor value;      // contiguous: the FP32 master weight, or BF16
  at::Tensor residual;   // int8, same shape, contiguous; undefined where the storage has none
  at::Tensor gradient;   // same shape, contiguous; accumulated by backward, cleared by the step loop
  bool decay = true;     // weight decay applies (matrices: yes, norm weights: no)
  std::uint32_t id = 0;  // position in the registry: keys the random numbers of its rounding
};

// Parameters keep their address for the registry's life. Not thread-safe.
class ParameterRegistry {
 public:
  ParameterRegistry() = default;
  ParameterRegistry(const ParameterRegistry&) = delete;
  ParameterRegistry& operator=(const ParameterRegistry&) = delete;

  // A zero-filled parameter and gradient on `device`. A name that is taken, or a storage that there is not,
  // is a std::logic_error.
  Parameter& add(const std::string& name, at::IntArrayRef shape, bool decay, at::Device device,
                 const ParameterStorage& storage = {});

  // In order of registration.
  const std::vector<Parameter*>& all() const { return order_; }
  Parameter& find(const std::string& name) const;  // throws std::out_of_range
  std::int64_t element_count() const;
  void zero_gradients();

 private:
  std::vector<std::unique_ptr<Parameter>> storage_;
  std::vector<Parameter*> order_;
};

}  // namespace coat
