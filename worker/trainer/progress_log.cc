#include "worker/trainer/progress_log.h"

#include <cstdarg>

namespace coat::trainer {
namespace {

constexpr std::chrono::seconds kInterval{2};

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

void ProgressLog::line(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(out_, format, arguments);
  va_end(arguments);
  std::fputc('\n', out_);
  std::fflush(out_);
}

void ProgressLog::started(const train::StartReport& report) {
  const MemoryLedger& ledger = report.estimate.memory;
  line("recipe %s: %lld parameters, %lld tokens of data, unigram entropy %.4f nats",
       report.estimate.recipe.c_str(), static_cast<long long>(report.estimate.parameters),
       static_cast<long long>(report.data_tokens), report.unigram_entropy);
  line(
      "memory by the ledger: %.1f MiB (weights %.1f, gradients %.1f, moments %.1f, activations %.1f, "
      "workspace %.1f); "
      "with bf16 %.1f MiB",
      mebibytes(ledger.total()), mebibytes(ledger.weights), mebibytes(ledger.gradients),
      mebibytes(ledger.moment1 + ledger.moment2), mebibytes(ledger.activations), mebibytes(ledger.workspace),
      mebibytes(report.estimate.memory_bf16.total()));
  if (report.resume_step > 0) line("goes on from step %lld", static_cast<long long>(report.resume_step));
}

void ProgressLog::step_done(const train::StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  const bool edge = report.step == 1 || report.step == report.total_steps;
  if (!edge && now - last_ < kInterval) return;
  last_ = now;
  line("step %lld/%lld  loss %.4f  lr %.3g  grad norm %.3f  %.0f tokens/s  %.1f MiB  %.0f s left",
       static_cast<long long>(report.step), static_cast<long long>(report.total_steps), report.loss,
       report.learning_rate, report.grad_norm, report.tokens_per_second, mebibytes(report.memory_bytes),
       report.remaining_seconds);
}

void ProgressLog::checkpoint_saved(const train::CheckpointReport& report) {
  line("checkpoint of step %lld: %s, %.1f MiB in %.2f s", static_cast<long long>(report.step),
       report.path.c_str(), mebibytes(report.bytes), report.seconds);
}

void ProgressLog::ended(const train::SummaryReport& report) {
  line("%lld steps, loss %.4f -> %.4f (unigram entropy %.4f), %.0f tokens/s, peak %.1f MiB",
       static_cast<long long>(report.steps), report.first_loss, report.last_loss, report.unigram_entropy,
       report.tokens_per_second, mebibytes(report.memory_peak_bytes));
  if (!report.sample.empty()) line("sample:\n%s", report.sample.c_str());
}

}  // namespace coat::trainer
