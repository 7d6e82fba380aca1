#include "worker/trainer/report_conversion.h"

namespace coat::trainer {
namespace {

std::vector<protocol::QuantizationError> to_message(const std::vector<train::QuantizationFigure>& figures) {
  std::vector<protocol::QuantizationError> errors;
  for (const train::QuantizationFigure& figure : figures) {
    errors.push_back({.tensor_class = figure.tensor_class,
                      .format = figure.format,
                      .relative_error = figure.relative_error,
                      .saturated_fraction = figure.saturated_fraction,
                      .underflow_fraction = figure.underflow_fraction,
                      .mean_expansion = figure.mean_expansion,
                      .expansion = {}});
    for (const train::ExpansionShare& step : figure.expansion) {
      errors.back().expansion.push_back({step.below, step.share});
    }
  }
  return errors;
}

}  // namespace

protocol::MemoryBreakdown to_message(const MemoryLedger& ledger) {
  return {.weights_bytes = ledger.weights,
          .gradients_bytes = ledger.gradients,
          .moment1_bytes = ledger.moment1,
          .moment2_bytes = ledger.moment2,
          .activations_bytes = ledger.activations,
          .workspace_bytes = ledger.workspace,
          .total_bytes = ledger.total()};
}

protocol::Estimate to_message(const train::TrainingEstimate& estimate, std::int64_t device_memory_bytes,
                              std::int64_t data_tokens) {
  return {.recipe = estimate.recipe,
          .memory = to_message(estimate.memory),
          .memory_bf16 = to_message(estimate.memory_bf16),
          .parameters = estimate.parameters,
          .device_memory_bytes = device_memory_bytes,
          .fits = estimate.memory.total() <= device_memory_bytes,
          .saved_bytes_per_token_per_layer = estimate.saved_bytes_per_token_per_layer,
          .data_tokens = data_tokens};
}

protocol::Started to_message(const train::StartReport& report) {
  return {.total_steps = report.total_steps,
          .resume_step = report.resume_step,
          .unigram_entropy = report.unigram_entropy,
          .estimate = to_message(report.estimate, report.device_memory_bytes, report.data_tokens)};
}

protocol::Step to_message(const train::StepReport& report) {
  return {.step = report.step,
          .loss = report.loss,
          .grad_norm = report.grad_norm,
          .learning_rate = report.learning_rate,
          .tokens_per_second = report.tokens_per_second,
          .tokens = report.tokens,
          .memory_bytes = report.memory_bytes,
          .memory_reserved_bytes = report.memory_reserved_bytes,
          .memory_peak_bytes = report.memory_peak_bytes,
          .nonfinite_steps = report.nonfinite_steps,
          .remaining_seconds = report.remaining_seconds,
          .quantization = to_message(report.quantization)};
}

protocol::Checkpoint to_message(const train::CheckpointReport& report) {
  return {.step = report.step, .path = report.path, .bytes = report.bytes, .seconds = report.seconds};
}

protocol::Summary to_message(const train::SummaryReport& report) {
  return {.first_loss = report.first_loss,
          .last_loss = report.last_loss,
          .unigram_entropy = report.unigram_entropy,
          .steps = report.steps,
          .tokens = report.tokens,
          .tokens_per_second = report.tokens_per_second,
          .wall_seconds = report.wall_seconds,
          .parameters = report.estimate.parameters,
          .memory = to_message(report.estimate.memory),
          .memory_bf16 = to_message(report.estimate.memory_bf16),
          .memory_peak_bytes = report.memory_peak_bytes,
          .quantization = to_message(report.quantization),
          .sample = report.sample,
          .checkpoint_path = report.checkpoint_path,
          .checkpoint_step = report.checkpoint_step};
}

}  // namespace coat::trainer
