#include "worker/agent/conversions.h"

#include <cmath>
#include <csignal>
#include <cstring>

#include <google/protobuf/util/time_util.h>

#include "worker/protocol/exit_codes.h"

namespace coat::agent {
namespace {

using protocol::ExitCode;

struct ExitRow {
  ExitCode code;
  v1::ExitStatus::Reason reason;
  const char* message;
  const char* fix;
};

constexpr ExitRow kExitTable[] = {
    {ExitCode::kDone, v1::ExitStatus::DONE, "done", ""},
    {ExitCode::kBadSpec, v1::ExitStatus::BAD_SPEC, "the trainer refused the spec", "see the attempt's log"},
    {ExitCode::kDataError, v1::ExitStatus::DATA_ERROR, "the training data cannot be used",
     "see the attempt's log"},
    {ExitCode::kCheckpointError, v1::ExitStatus::CHECKPOINT_ERROR,
     "a checkpoint could not be read or written", "look at the checkpoint folder and its disk"},
    {ExitCode::kInternal, v1::ExitStatus::INTERNAL, "the trainer met an error of its own",
     "report it with the attempt's log"},
    {ExitCode::kOutOfDeviceMemory, v1::ExitStatus::OUT_OF_DEVICE_MEMORY,
     "the device's memory did not suffice", "a smaller training.micro_batch, or a recipe that holds less"},
    {ExitCode::kNonFiniteLoss, v1::ExitStatus::NON_FINITE_LOSS, "the loss is not finite",
     "a lower optimizer.learning_rate or a longer optimizer.warmup_steps"},
    {ExitCode::kCollectiveFailed, v1::ExitStatus::COLLECTIVE_FAILED, "another rank or the network went away",
     ""},
    {ExitCode::kDeviceFault, v1::ExitStatus::DEVICE_FAULT, "the device reported an error", ""},
    {ExitCode::kStopped, v1::ExitStatus::STOPPED, "stopped after a checkpoint", ""},
    {ExitCode::kFenced, v1::ExitStatus::CHECKPOINT_ERROR,
     "a newer attempt of the job owns its checkpoint folder",
     "nothing, where that attempt runs; else a checkpoint folder of its own for this service"},
};

const ExitRow* find_row(int exit_code) {
  for (const ExitRow& row : kExitTable) {
    if (static_cast<int>(row.code) == exit_code) return &row;
  }
  return nullptr;
}

google::protobuf::Timestamp to_timestamp(double unix_seconds) {
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      static_cast<std::int64_t>(unix_seconds * 1e9));
}

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : "signal SIG" + std::string(name);
}

std::string why_stopped(const StopRequest& stop) {
  return stop.reason.empty() ? "asked to stop" : stop.reason;
}

void describe_stop(const ExitRecord& record, v1::ExitStatus* exit) {
  const StopRequest& stop = *record.stop;
  exit->set_reason(stop.user_cancel ? v1::ExitStatus::CANCELLED : v1::ExitStatus::STOPPED);
  if (record.exit_code == static_cast<int>(ExitCode::kStopped)) {
    exit->set_message("stopped after a checkpoint: " + why_stopped(stop));
  } else if (record.signal != 0) {
    exit->set_message("killed when the grace for a checkpoint was over: " + why_stopped(stop));
  } else if (record.exit_code < 0) {
    exit->set_message("stopped before it began: " + why_stopped(stop));
  } else {
    exit->set_message("ended with exit code " + std::to_string(record.exit_code) +
                      " while stopping: " + why_stopped(stop));
  }
}

void describe_signal(int number, v1::ExitStatus* exit) {
  exit->set_reason(v1::ExitStatus::KILLED);
  exit->set_message(
      "the trainer was ended by " + signal_text(number) +
      (number == SIGKILL ? ", which the service did not send: often the kernel, out of memory" : ""));
}

void describe_code(int exit_code, v1::ExitStatus* exit) {
  const ExitRow* row = find_row(exit_code);
  exit->set_reason(reason_of(exit_code));
  exit->set_message(row != nullptr
                        ? row->message
                        : "the trainer ended with the unknown exit code " + std::to_string(exit_code));
  exit->set_fix(row != nullptr ? row->fix : "report it with the attempt's log");
}

void take_words(const protocol::Failure& failure, v1::ExitStatus* exit) {
  if (!failure.message.empty()) exit->set_message(failure.message);
  if (!failure.field.empty()) exit->set_field(failure.field);
  if (!failure.fix.empty()) exit->set_fix(failure.fix);
}

}  // namespace

v1::MemoryBreakdown to_message(const protocol::MemoryBreakdown& memory) {
  v1::MemoryBreakdown message;
  message.set_weights_bytes(memory.weights_bytes);
  message.set_gradients_bytes(memory.gradients_bytes);
  message.set_moment1_bytes(memory.moment1_bytes);
  message.set_moment2_bytes(memory.moment2_bytes);
  message.set_activations_bytes(memory.activations_bytes);
  message.set_workspace_bytes(memory.workspace_bytes);
  message.set_total_bytes(memory.total_bytes);
  return message;
}

v1::QuantizationError to_message(const protocol::QuantizationError& error) {
  v1::QuantizationError message;
  message.set_tensor_class(error.tensor_class);
  message.set_format(error.format);
  message.set_relative_error(error.relative_error);
  message.set_saturated_fraction(error.saturated_fraction);
  message.set_underflow_fraction(error.underflow_fraction);
  message.set_mean_expansion(error.mean_expansion);
  for (const protocol::ExpansionShare& step : error.expansion) {
    v1::ExpansionShare* share = message.add_expansion();
    share->set_below(step.below);
    share->set_share(step.share);
  }
  return message;
}

v1::Estimate to_message(const protocol::Estimate& estimate) {
  v1::Estimate message;
  *message.mutable_memory() = to_message(estimate.memory);
  *message.mutable_memory_bf16() = to_message(estimate.memory_bf16);
  message.set_parameters(estimate.parameters);
  message.set_device_memory_bytes(estimate.device_memory_bytes);
  message.set_fits(estimate.fits);
  message.set_saved_bytes_per_token_per_layer(estimate.saved_bytes_per_token_per_layer);
  message.set_data_tokens(estimate.data_tokens);
  message.set_recipe(estimate.recipe);
  return message;
}

v1::TrainingSummary to_message(const protocol::Summary& summary, const std::string& log_path,
                               const std::string& metrics_path) {
  v1::TrainingSummary message;
  message.set_first_loss(summary.first_loss);
  message.set_last_loss(summary.last_loss);
  message.set_unigram_entropy(summary.unigram_entropy);
  message.set_steps(summary.steps);
  message.set_tokens(summary.tokens);
  message.set_tokens_per_second(summary.tokens_per_second);
  message.set_wall_seconds(summary.wall_seconds);
  *message.mutable_memory() = to_message(summary.memory);
  *message.mutable_memory_bf16() = to_message(summary.memory_bf16);
  message.set_memory_peak_bytes(summary.memory_peak_bytes);
  for (const auto& error : summary.quantization) *message.add_quantization() = to_message(error);
  message.set_sample(summary.sample);
  message.set_checkpoint_path(summary.checkpoint_path);
  message.set_checkpoint_step(summary.checkpoint_step);
  message.set_metrics_path(metrics_path);
  message.set_log_path(log_path);
  message.set_parameters(summary.parameters);
  return message;
}

v1::Progress to_progress(const protocol::Step& step, std::int64_t total_steps, std::int64_t checkpoint_step,
                         double update_unix_seconds) {
  v1::Progress message;
  message.set_step(step.step);
  message.set_total_steps(total_steps);
  message.set_loss(step.loss);
  message.set_tokens_per_second(step.tokens_per_second);
  message.set_tokens(step.tokens);
  if (std::isfinite(step.remaining_seconds) && std::abs(step.remaining_seconds) < 1e9) {
    *message.mutable_remaining_duration() = google::protobuf::util::TimeUtil::MillisecondsToDuration(
        static_cast<std::int64_t>(step.remaining_seconds * 1e3));
  }
  message.set_checkpoint_step(checkpoint_step);
  *message.mutable_update_time() = to_timestamp(update_unix_seconds);
  message.set_grad_norm(step.grad_norm);
  message.set_learning_rate(step.learning_rate);
  message.set_memory_bytes(step.memory_bytes);
  message.set_memory_peak_bytes(step.memory_peak_bytes);
  for (const auto& error : step.quantization) *message.add_quantization() = to_message(error);
  return message;
}

v1::ExitStatus::Reason reason_of(int exit_code) {
  const ExitRow* row = find_row(exit_code);
  return row == nullptr ? v1::ExitStatus::INTERNAL : row->reason;
}

v1::ExitStatus to_exit_status(const protocol::Failure& failure) {
  v1::ExitStatus exit;
  describe_code(failure.exit_code, &exit);
  exit.set_exit_code(failure.exit_code);
  take_words(failure, &exit);
  return exit;
}

AttemptEnd end_of(const ExitRecord& record, const std::optional<protocol::Failure>& failure) {
  AttemptEnd end;
  end.exit.set_exit_code(record.exit_code);
  end.exit.set_signal(record.signal);
  const bool done = record.exit_code == static_cast<int>(ExitCode::kDone);
  const bool obeyed = record.exit_code == static_cast<int>(ExitCode::kStopped) || record.killed_by_service ||
                      (record.exit_code < 0 && record.signal == 0);
  if (!record.launch_error.empty()) {
    end.exit.set_reason(v1::ExitStatus::LAUNCH_FAILED);
    end.exit.set_message(record.launch_error);
    end.exit.set_fix("the worker's --trainer must name a coat-trainer that runs on this machine");
  } else if (done) {
    end.state = v1::Attempt::SUCCEEDED;
    describe_code(record.exit_code, &end.exit);
  } else if (record.stop && (record.stop->user_cancel || obeyed)) {
    if (record.stop->user_cancel) end.state = v1::Attempt::CANCELLED;
    describe_stop(record, &end.exit);
  } else if (!record.supervisor_error.empty()) {
    end.exit.set_reason(v1::ExitStatus::KILLED);
    end.exit.set_message(record.supervisor_error);
  } else if (record.signal != 0) {
    describe_signal(record.signal, &end.exit);
  } else {
    describe_code(record.exit_code, &end.exit);
    if (failure) take_words(*failure, &end.exit);
  }
  return end;
}

}  // namespace coat::agent
