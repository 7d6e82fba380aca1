#include "worker/agent/job_metrics.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace coat::agent {
namespace {

// A counter that follows a figure of the trainer's, which falls back when a job goes on from an older
// checkpoint.
void follow(Metrics& metrics, const char* name, const char* help, const std::string& job, double value,
            double* known) {
  metrics.add_counter(name, help, {{"job", job}}, std::max(0.0, value - *known));
  *known = std::max(*known, value);
}

// As short as a label can be: "0.5", "16".
std::string label_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

void JobMetrics::observe(const AttemptView& attempt) {
  const TrainingState& state = attempt.training;
  if (!state.started && !state.step) return;
  if (attempt.ended && !jobs_.contains(attempt.job)) return;  // ended before this daemon began
  Job& known = jobs_[attempt.job];
  if (attempt.epoch < known.epoch) return;
  if (attempt.epoch > known.epoch) {
    known.epoch = attempt.epoch;
    known.step = known.checkpoint_step = -1;
    known.started = false;
  }
  if (state.started && !known.started) export_start(attempt.job, *state.started);
  known.started |= state.started.has_value();
  if (state.step && state.step->step != known.step) export_step(attempt.job, *state.step, &known);
  if (state.checkpoint && state.checkpoint->step != known.checkpoint_step) {
    known.checkpoint_step = state.checkpoint->step;
    export_checkpoint(attempt.job, state);
  }
  if (!attempt.ended || known.last_live == SteadyTime{}) known.last_live = clock_.now();
}

void JobMetrics::expire() {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (clock_.now() - it->second.last_live < linger_) {
      ++it;
      continue;
    }
    metrics_.remove_series("job", it->first);
    it = jobs_.erase(it);
  }
}

void JobMetrics::export_start(const std::string& job, const protocol::Started& started) {
  const protocol::MemoryBreakdown& memory = started.estimate.memory;
  metrics_.set_gauge("coat_job_memory_bytes",
                     "Device memory of the job: allocated, reserved, peak, or estimated by the ledger",
                     {{"job", job}, {"kind", "estimated"}}, static_cast<double>(memory.total_bytes));
  const std::pair<const char*, std::int64_t> categories[] = {
      {"weights", memory.weights_bytes},         {"gradients", memory.gradients_bytes},
      {"moment1", memory.moment1_bytes},         {"moment2", memory.moment2_bytes},
      {"activations", memory.activations_bytes}, {"workspace", memory.workspace_bytes}};
  for (const auto& [category, bytes] : categories) {
    metrics_.set_gauge("coat_job_memory_ledger_bytes",
                       "The ledger's prediction of the job's memory by category",
                       {{"job", job}, {"category", category}}, static_cast<double>(bytes));
  }
}

void JobMetrics::export_step(const std::string& job, const protocol::Step& step, Job* known) {
  known->step = step.step;
  const MetricLabels label{{"job", job}};
  metrics_.set_gauge("coat_job_step", "Optimizer steps done", label, static_cast<double>(step.step));
  metrics_.set_gauge("coat_job_loss", "Loss of the latest step, nats a token", label, step.loss);
  metrics_.set_gauge("coat_job_grad_norm", "Global gradient norm of the latest step, before clipping", label,
                     step.grad_norm);
  metrics_.set_gauge("coat_job_learning_rate", "Learning rate of the latest step", label, step.learning_rate);
  metrics_.set_gauge("coat_job_tokens_per_second", "Training speed of the latest step", label,
                     step.tokens_per_second);
  follow(metrics_, "coat_job_tokens_total", "Tokens that the job has seen", job,
         static_cast<double>(step.tokens), &known->tokens);
  follow(metrics_, "coat_job_nonfinite_steps_total", "Steps skipped because a gradient was not finite", job,
         static_cast<double>(step.nonfinite_steps), &known->nonfinite_steps);
  const std::pair<const char*, std::int64_t> kinds[] = {{"allocated", step.memory_bytes},
                                                        {"reserved", step.memory_reserved_bytes},
                                                        {"peak", step.memory_peak_bytes}};
  for (const auto& [kind, bytes] : kinds) {
    metrics_.set_gauge("coat_job_memory_bytes",
                       "Device memory of the job: allocated, reserved, peak, or estimated by the ledger",
                       {{"job", job}, {"kind", kind}}, static_cast<double>(bytes));
  }
  for (const protocol::QuantizationError& error : step.quantization) {
    const MetricLabels labels{{"job", job}, {"tensor_class", error.tensor_class}, {"format", error.format}};
    metrics_.set_gauge("coat_job_quant_relative_error_ratio",
                       "Relative quantization error of a tensor class, as last measured", labels,
                       error.relative_error);
    metrics_.set_gauge("coat_job_quant_saturated_ratio",
                       "Share of elements at the largest code though larger", labels,
                       error.saturated_fraction);
    metrics_.set_gauge("coat_job_quant_underflow_ratio",
                       "Share of elements that became zero though they were not", labels,
                       error.underflow_fraction);
    metrics_.set_gauge("coat_job_quant_expansion_exponent",
                       "Mean expansion exponent k over the groups of a tensor class",
                       {{"job", job}, {"tensor_class", error.tensor_class}}, error.mean_expansion);
    for (const protocol::ExpansionShare& share : error.expansion) {
      metrics_.set_gauge("coat_job_quant_expansion_below_ratio",
                         "Share of a tensor class's groups whose expansion exponent k is below the label's",
                         {{"job", job}, {"tensor_class", error.tensor_class}, {"k", label_of(share.below)}},
                         share.share);
    }
  }
}

void JobMetrics::export_checkpoint(const std::string& job, const TrainingState& state) {
  metrics_.set_gauge("coat_job_last_checkpoint_timestamp_seconds",
                     "When the job's newest checkpoint was complete", {{"job", job}}, state.checkpoint_time);
  metrics_.set_gauge("coat_job_checkpoint_seconds", "How long the job's newest checkpoint took to write",
                     {{"job", job}}, state.checkpoint->seconds);
}

}  // namespace coat::agent
