#include "worker/core/train/estimate.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "worker/core/base/error.h"
#include "worker/core/model/model_ledger.h"

namespace coat::train {
namespace {

constexpr const char* kBf16 = "bf16";

std::string mebibytes(std::int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string largest_category(const MemoryLedger& ledger) {
  const std::pair<const char*, std::int64_t> categories[] = {
      {"weights", ledger.weights},         {"gradients", ledger.gradients},
      {"first moment", ledger.moment1},    {"second moment", ledger.moment2},
      {"activations", ledger.activations}, {"workspace", ledger.workspace},
  };
  const auto& largest = *std::max_element(std::begin(categories), std::end(categories),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::string(largest.first) + " " + mebibytes(largest.second);
}

// The largest micro-batch whose ledger fits; 0 where not even one sequence does. The ledger rises with the
// micro-batch.
std::int64_t largest_micro_batch(const spec::JobSpec& spec, const Recipe& format, std::int64_t device_bytes,
                                 c10::DeviceType device) {
  std::int64_t fits = 0;
  std::int64_t too_large = spec.training.micro_batch + 1;
  spec::TrainingSpec training = spec.training;
  while (too_large - fits > 1) {
    training.micro_batch = fits + (too_large - fits) / 2;
    if (memory_ledger(spec.model, training, format, device).total() <= device_bytes) {
      fits = training.micro_batch;
    } else {
      too_large = training.micro_batch;
    }
  }
  return fits;
}

std::string what_would_fit(const spec::JobSpec& spec, std::int64_t device_bytes, c10::DeviceType device) {
  const std::int64_t micro_batch = largest_micro_batch(spec, recipe(spec.recipe), device_bytes, device);
  if (micro_batch > 0) {
    return "training.micro_batch = " + std::to_string(micro_batch) +
           " fits (raise training.accumulation_steps to keep the tokens of a step)";
  }
  for (const std::string& name : recipe_preset_names()) {
    if (name == spec.recipe) continue;
    const std::int64_t other = largest_micro_batch(spec, recipe(name), device_bytes, device);
    if (other > 0) return "recipe " + name + " fits with training.micro_batch = " + std::to_string(other);
  }
  return "no micro_batch fits: use a smaller model, a shorter training.sequence_length or a larger device";
}

}  // namespace

MemoryLedger memory_ledger(const spec::ModelSpec& model, const spec::TrainingSpec& training,
                           const Recipe& format, c10::DeviceType device) {
  MemoryLedger ledger;
  for (const auto& [elements, kind] : parameter_sizes(model)) {
    const ParameterBytes bytes = bytes_of(storage_of(format, kind), elements);
    ledger.weights += bytes.value;
    ledger.gradients += bytes.gradient;
    ledger.moment1 += format.moment1.total_bytes(elements);
    ledger.moment2 += format.moment2.total_bytes(elements);
  }
  const BatchShape batch{.sequences = training.micro_batch, .length = training.sequence_length};
  ledger.activations = saved_bytes_of_model(model, format, batch.sequences * batch.length);
  ledger.workspace = workspace_bytes(model, format, batch, device);
  return ledger;
}

TrainingEstimate estimate(const spec::JobSpec& spec, c10::DeviceType device) {
  const Recipe& format = recipe(spec.recipe);
  TrainingEstimate result{.recipe = spec.recipe};
  result.memory = memory_ledger(spec.model, spec.training, format, device);
  result.memory_bf16 = memory_ledger(spec.model, spec.training, recipe(kBf16), device);
  result.parameters = parameter_count(spec.model);
  const std::int64_t tokens = spec.training.micro_batch * spec.training.sequence_length;
  result.saved_bytes_per_token_per_layer =
      static_cast<double>(saved_bytes_of_layer(spec.model, format, tokens)) / static_cast<double>(tokens);
  return result;
}

std::int64_t checkpoint_bytes(const spec::JobSpec& spec) {
  const MemoryLedger ledger = memory_ledger(spec.model, spec.training, recipe(spec.recipe));
  return ledger.weights + ledger.moment1 + ledger.moment2;
}

void require_fit(const spec::JobSpec& spec, std::int64_t device_bytes, c10::DeviceType device) {
  const MemoryLedger ledger = memory_ledger(spec.model, spec.training, recipe(spec.recipe), device);
  if (ledger.total() <= device_bytes) return;
  throw OutOfDeviceMemoryError(
      "the job needs " + std::to_string(ledger.total()) + " bytes (" + mebibytes(ledger.total()) +
      ", most of it " + largest_category(ledger) + ") and may hold " + std::to_string(device_bytes) + " (" +
      mebibytes(device_bytes) + ") on the device: " + what_would_fit(spec, device_bytes, device));
}

}  // namespace coat::train
