#include "tests/support/service/tiny_job.h"

#include <array>
#include <sstream>

namespace coat::testing {

std::string to_yaml(const TinyJob& job) {
  std::ostringstream yaml;
  yaml << "name: " << job.name << "\nrecipe: " << job.recipe
       << "\nmodel: {vocab_size: 256, hidden: 32, intermediate: 64, layers: 2, heads: 2, kv_heads: 1}"
       << "\ndata: {path: \"" << job.data_path << "\", format: bytes}"
       << "\ntraining: {steps: " << job.steps << ", sequence_length: 32, micro_batch: 2, seed: 7}"
       << "\noptimizer: {learning_rate: 0.01, schedule: cosine, warmup_steps: 2}"
       << "\ncheckpoint: {interval_steps: " << job.checkpoint_interval << ", keep: 2}"
       << "\nmetrics: {quantization_interval_steps: 5}"
       << "\nsample: {prompt: \"the \", tokens: 20, temperature: 0.5}"
       << "\nretry: {max_retries: " << job.max_retries << "}"
       << "\nstop_grace_seconds: " << job.stop_grace_seconds << "\n"
       << job.extra;
  return yaml.str();
}

std::string tiny_text(std::size_t bytes) {
  constexpr std::array<const char*, 8> kWords = {"the ", "light ", "was ",   "good ",
                                                 "and ", "day ",   "night ", "came.\n"};
  std::string text;
  std::uint32_t state = 1;
  while (text.size() < bytes) {
    state = state * 1664525U + 1013904223U;
    text += kWords[state >> 29];
  }
  text.resize(bytes);
  return text;
}

}  // namespace coat::testing
