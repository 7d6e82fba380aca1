#include "tests/support/client/fake_job_service.h"

namespace coat::testing {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

void set_memory(v1::MemoryBreakdown& memory, std::int64_t scale) {
  memory.set_weights_bytes(12 * kMiB);
  memory.set_gradients_bytes(12 * kMiB);
  memory.set_moment1_bytes(3 * kMiB * scale);
  memory.set_moment2_bytes(3 * kMiB * scale);
  memory.set_activations_bytes(20 * kMiB * scale);
  memory.set_workspace_bytes(8 * kMiB);
  memory.set_total_bytes(32 * kMiB + 26 * kMiB * scale);
}

void add_error(google::protobuf::RepeatedPtrField<v1::QuantizationError>& errors, const char* tensor_class,
               const char* format, double relative, double expansion) {
  v1::QuantizationError& error = *errors.Add();
  error.set_tensor_class(tensor_class);
  error.set_format(format);
  error.set_relative_error(relative);
  error.set_underflow_fraction(0.0001);
  error.set_mean_expansion(expansion);
}

}  // namespace

v1::Job running_job(const std::string& id, std::int64_t step) {
  v1::Job job;
  job.set_name("jobs/" + id);
  job.set_state(v1::Job::RUNNING);
  job.mutable_spec()->set_name("quickstart");
  job.mutable_spec()->set_recipe("coat");
  job.mutable_spec()->mutable_data()->set_path("/data/text");
  job.mutable_spec()->mutable_training()->set_steps(100);
  job.mutable_create_time()->set_seconds(1'000'000'000);
  job.mutable_start_time()->set_seconds(1'000'000'001);
  job.set_attempt_count(1);
  v1::Progress& progress = *job.mutable_progress();
  progress.set_step(step);
  progress.set_total_steps(100);
  if (step == 0) return job;
  progress.set_loss(5.5 - 0.04 * static_cast<double>(step));
  progress.set_tokens_per_second(3412);
  progress.set_tokens(2048 * step);
  progress.mutable_remaining_duration()->set_seconds(100 - step);
  progress.set_memory_bytes(80 * kMiB);
  progress.set_memory_peak_bytes(84 * kMiB);
  add_error(*progress.mutable_quantization(), "activation", "e4m3", 0.0263, 0);
  add_error(*progress.mutable_quantization(), "moment1", "e4m3", 0.011, 2.5);
  return job;
}

v1::Job succeeded_job(const std::string& id) {
  v1::Job job = running_job(id, 100);
  job.set_state(v1::Job::SUCCEEDED);
  job.mutable_end_time()->set_seconds(1'000'000'131);
  job.mutable_exit()->set_reason(v1::ExitStatus::DONE);
  v1::TrainingSummary& summary = *job.mutable_summary();
  summary.set_first_loss(5.5452);
  summary.set_last_loss(1.7123);
  summary.set_unigram_entropy(3.1213);
  summary.set_steps(100);
  summary.set_tokens(204800);
  summary.set_tokens_per_second(3412);
  summary.set_wall_seconds(130);
  set_memory(*summary.mutable_memory(), 1);
  set_memory(*summary.mutable_memory_bf16(), 4);
  summary.set_memory_peak_bytes(57 * kMiB);
  add_error(*summary.mutable_quantization(), "activation", "e4m3", 0.0263, 0);
  add_error(*summary.mutable_quantization(), "moment1", "e4m3", 0.011, 2.5);
  summary.set_sample("And God said unto the\nking");
  summary.set_checkpoint_path("/state/checkpoints/" + id + "/step-00000100");
  summary.set_checkpoint_step(100);
  summary.set_metrics_path("/state/attempts/1/metrics.jsonl");
  summary.set_log_path("/state/attempts/1/log");
  summary.set_parameters(3'300'000);
  return job;
}

v1::Job failed_job(const std::string& id) {
  v1::Job job = running_job(id, 0);
  job.set_state(v1::Job::FAILED);
  job.mutable_end_time()->set_seconds(1'000'000'005);
  v1::ExitStatus& exit = *job.mutable_exit();
  exit.set_reason(v1::ExitStatus::DATA_ERROR);
  exit.set_exit_code(65);
  exit.set_message("the file /data/text is empty");
  exit.set_field("data.path");
  exit.set_fix("name a file with at least 257 tokens");
  return job;
}

}  // namespace coat::testing
