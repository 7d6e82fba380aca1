#include "tests/unit/worker/core/model/model_fixture.h"

#include <algorithm>
#include <random>
#include <stdexcept>

#include <ATen/ATen.h>

#include "worker/core/kernels/cpu/cpu_kernels.h"

namespace coat {

spec::ModelSpec Shape::model() const {
  spec::ModelSpec model;
  model.vocab_size = vocab;
  model.hidden = hidden;
  model.intermediate = intermediate;
  model.layers = layers;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.tie_embeddings = tied;
  return model;
}

std::string Shape::name() const {
  return "h" + std::to_string(hidden) + "_f" + std::to_string(intermediate) + "_n" + std::to_string(heads) +
         "_k" + std::to_string(kv_heads) + "_b" + std::to_string(sequences) + "_s" + std::to_string(length) +
         (tied ? "_tied" : "_untied");
}

Recipe recipe_named(const std::string& name) {
  const std::size_t base = name.find('_');
  if (base == std::string::npos) return recipe(name);
  const std::string change = name.substr(base + 1);
  Recipe combination = recipe(name.substr(0, base));
  combination.name = name;
  if (change == "saved") {
    combination.save_norm_output = combination.save_activation = combination.save_product = true;
  } else if (change == "attention") {
    combination.saved_attention = combination.saved_nonlinear;
  } else if (change == "stochastic") {
    combination.weights = WeightFormat::kBf16Stochastic;
  } else if (change == "master") {
    combination.weights = WeightFormat::kFp32;
    combination.weight_gradient = Format::kFp32;
  } else {
    throw std::invalid_argument("no combination is called " + name);
  }
  return combination;
}

std::string test_name(std::string recipe_name) {
  std::replace(recipe_name.begin(), recipe_name.end(), '-', '_');
  return recipe_name;
}

std::unique_ptr<LanguageModel> make_model(const Shape& shape, const std::string& recipe_name) {
  auto model = make_llama(shape.model(), recipe_named(recipe_name), kernels::cpu_kernels(), at::kCPU, 7);
  // Weights large enough that every path carries gradient; norms away from 1 so that their place in the
  // formula shows.
  for (Parameter* parameter : model->parameters().all()) {
    if (parameter->value.dim() == 1) {
      parameter->value.copy_(at::linspace(0.6, 1.4, parameter->value.numel()));
    } else {
      parameter->value.mul_(5);
    }
  }
  return model;
}

MicroBatch make_batch(const Shape& shape, std::uint64_t seed, bool masked) {
  const std::int64_t tokens = shape.sequences * shape.length;
  std::mt19937_64 random(seed);
  at::Tensor stream = at::empty({tokens + 1}, at::kInt);
  for (std::int64_t i = 0; i <= tokens; ++i) {
    stream.mutable_data_ptr<std::int32_t>()[i] =
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(shape.vocab));
  }
  MicroBatch batch;
  batch.tokens = stream.narrow(0, 0, tokens).clone();
  batch.targets = stream.narrow(0, 1, tokens).clone();
  if (masked) batch.mask = at::arange(tokens).remainder(5).ne(0).to(at::kFloat);
  batch.sequences = shape.sequences;
  batch.length = shape.length;
  return batch;
}

double counting(const MicroBatch& batch) {
  return batch.mask.defined() ? batch.mask.sum().item<double>() : static_cast<double>(batch.targets.numel());
}

}  // namespace coat
