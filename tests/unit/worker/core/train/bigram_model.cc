#include "tests/unit/worker/core/train/bigram_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace coat::train {

double BigramModel::pass(const MicroBatch& batch, float gradient_scale, bool backward) {
  const auto* tokens = batch.tokens.const_data_ptr<std::int32_t>();
  const auto* targets = batch.targets.const_data_ptr<std::int32_t>();
  Parameter& table = *registry_.all()[0];
  Parameter& bias = *registry_.all()[1];
  const auto* weights = table.value.const_data_ptr<float>();
  const auto* offsets = bias.value.const_data_ptr<float>();
  auto* table_gradient = table.gradient.mutable_data_ptr<float>();
  auto* bias_gradient = bias.gradient.mutable_data_ptr<float>();
  std::vector<double> p(static_cast<std::size_t>(vocab_));
  double loss_sum = 0;
  for (std::int64_t i = 0; i < batch.sequences * batch.length; ++i) {
    const std::int64_t row = tokens[i] * vocab_;
    double sum = 0;
    for (std::int64_t j = 0; j < vocab_; ++j) {
      const auto logit = static_cast<double>(weights[row + j]) + static_cast<double>(offsets[j]);
      sum += p[static_cast<std::size_t>(j)] = std::exp(logit);
    }
    loss_sum -= std::log(p[static_cast<std::size_t>(targets[i])] / sum);
    for (std::int64_t j = 0; backward && j < vocab_; ++j) {
      const double d = p[static_cast<std::size_t>(j)] / sum - (j == targets[i] ? 1.0 : 0.0);
      table_gradient[row + j] += static_cast<float>(d) * gradient_scale;
      bias_gradient[j] += static_cast<float>(d) * gradient_scale;
    }
  }
  return loss_sum;
}

at::Tensor BigramModel::add_gradients(const MicroBatch& batch, float gradient_scale,
                                      QuantizationProbe* probe) {
  const int call = calls++;
  if (probe != nullptr) {
    ++probes;
    probe->classes["activation"].elements += 4;
    probe->classes["activation"].error_squared += 1;
    probe->classes["activation"].reference_squared += 16;
    probe->classes["activation"].underflowed += 1;
  }
  const double sum = pass(batch, gradient_scale, true);
  if (after_backward) after_backward(call);
  return at::full({1}, replace_loss ? replace_loss(call, sum) : sum, at::TensorOptions().dtype(at::kDouble));
}

double BigramModel::loss(const MicroBatch& batch) { return pass(batch, 0, false); }

at::Tensor BigramModel::next_token_logits(const at::Tensor& tokens) {
  const std::int32_t last = tokens.const_data_ptr<std::int32_t>()[tokens.numel() - 1];
  const auto* row = registry_.all()[0]->value.const_data_ptr<float>() + last * vocab_;
  const auto* offsets = registry_.all()[1]->value.const_data_ptr<float>();
  at::Tensor logits = at::empty({vocab_}, at::TensorOptions().dtype(at::kFloat));
  std::transform(row, row + vocab_, offsets, logits.mutable_data_ptr<float>(), std::plus<float>());
  return logits;
}

}  // namespace coat::train
