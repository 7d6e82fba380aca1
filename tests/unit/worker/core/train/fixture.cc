#include "tests/unit/worker/core/train/fixture.h"

namespace coat::train {

std::string small_text(std::size_t bytes) {
  const char* words[] = {"the", "lord",  "said",   "unto", "moses",  "go",
                         "and", "speak", "people", "of",   "israel", "light"};
  std::string text;
  std::uint32_t state = 12345;
  while (text.size() < bytes) {
    state = state * 1664525U + 1013904223U;
    text += words[(state >> 16) % 12];
    text += (state >> 28) == 0 ? ".\n" : " ";
  }
  return text;
}

spec::JobSpec small_spec(const std::string& path, const std::string& recipe) {
  spec::JobSpec spec;
  spec.name = "small";
  spec.recipe = recipe;
  spec.model = {.vocab_size = 128, .hidden = 48, .intermediate = 96, .layers = 2, .heads = 4, .kv_heads = 2};
  spec.data.path = path;
  spec.training = {.steps = 12, .sequence_length = 32, .micro_batch = 4, .accumulation_steps = 2, .seed = 7};
  spec.optimizer.learning_rate = 3e-3;
  spec.optimizer.warmup_steps = 4;
  spec.metrics.quantization_interval_steps = 4;
  return spec;
}

std::string state_bytes(ParameterRegistry& parameters, const AdamW& optimizer) {
  std::string bytes;
  const auto add = [&bytes](const at::Tensor& tensor) {
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  for (const Parameter* parameter : parameters.all()) add(parameter->value);
  for (const auto& entry : optimizer.state()) add(entry.second);
  return bytes;
}

std::vector<double> Recorder::losses() const {
  std::vector<double> values;
  for (const StepReport& step : steps) values.push_back(step.loss);
  return values;
}

}  // namespace coat::train
