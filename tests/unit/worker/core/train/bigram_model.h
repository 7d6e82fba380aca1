// The smallest language model that learns: a table of logits, one row for each previous token. Its gradients
// are exact, its steps take microseconds, and a test may look in at every micro-batch.
#pragma once

#include <cstdint>
#include <functional>

#include "worker/core/model/language_model.h"

namespace coat::train {

class BigramModel : public LanguageModel {
 public:
  explicit BigramModel(std::int64_t vocab) : vocab_(vocab) {
    registry_.add("table", {vocab, vocab}, true, at::kCPU);
    registry_.add("bias", {vocab}, false, at::kCPU);
  }
  ParameterRegistry& parameters() override { return registry_; }
  at::Tensor add_gradients(const MicroBatch& batch, float gradient_scale, QuantizationProbe* probe) override;
  double loss(const MicroBatch& batch) override;
  at::Tensor next_token_logits(const at::Tensor& tokens) override;
  std::int64_t saved_bytes() const override { return 0; }

  int calls = 0;                                 // of add_gradients
  int probes = 0;                                // of those, with a probe
  std::function<void(int call)> after_backward;  // may spoil gradients or ask for a stop
  std::function<double(int call, double loss)> replace_loss;

 private:
  double pass(const MicroBatch& batch, float gradient_scale, bool backward);
  std::int64_t vocab_;
  ParameterRegistry registry_;
};

}  // namespace coat::train
