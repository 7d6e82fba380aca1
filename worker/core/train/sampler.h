// Text from a model of bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "worker/core/model/language_model.h"

namespace coat::train {

struct SampleOptions {
  std::string prompt;         // at least one byte, each below the vocabulary
  std::int64_t tokens = 200;  // new ones
  double temperature = 0.8;   // 0: the likeliest token each time, the lowest id among equals
  std::uint64_t seed = 1;
  std::int64_t context = 256;  // the model sees so many of the newest tokens: what it was trained on
};

// The prompt and what follows it, fit to be printed: printable_text(). Equal options and weights give equal
// text. Ends early when `interrupted` says so.
std::string sample_text(LanguageModel& model, const SampleOptions& options, at::Device device,
                        const std::function<bool()>& interrupted = {});

// An id drawn from softmax(logits / temperature); `uniform` in [0, 1). Logits that are not finite are never
// drawn, unless none is finite: then 0.
std::int64_t draw_token(const float* logits, std::int64_t count, double temperature, double uniform);

// UTF-8 without control characters other than line feed and tab: whatever is not so becomes U+FFFD, so that
// no output of a model can steer a terminal.
std::string printable_text(const std::string& bytes);

}  // namespace coat::train
