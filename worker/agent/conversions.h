// The trainer's words in the contract's: worker/protocol structs as coat.v1 messages, and the one table of
// how attempts end. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "proto/coat/v1/types.pb.h"
#include "worker/agent/attempt_record.h"
#include "worker/protocol/messages.h"

namespace coat::agent {

v1::MemoryBreakdown to_message(const protocol::MemoryBreakdown& memory);
v1::QuantizationError to_message(const protocol::QuantizationError& error);
v1::Estimate to_message(const protocol::Estimate& estimate);
// `log_path` and `metrics_path` are the worker's own.
v1::TrainingSummary to_message(const protocol::Summary& summary, const std::string& log_path,
                               const std::string& metrics_path);
v1::Progress to_progress(const protocol::Step& step, std::int64_t total_steps, std::int64_t checkpoint_step,
                         double update_unix_seconds);

// What coat-trainer's exit code says (worker/protocol/exit_codes.h); INTERNAL for a code that is not in the
// table. kFenced becomes CHECKPOINT_ERROR: a newer attempt owns the checkpoint folder, so this one must not
// be tried again.
v1::ExitStatus::Reason reason_of(int exit_code);
// What a failed estimate says: BAD_SPEC and DATA_ERROR with field and fix, else INTERNAL.
v1::ExitStatus to_exit_status(const protocol::Failure& failure);

struct AttemptEnd {
  v1::Attempt::State state = v1::Attempt::FAILED;
  v1::ExitStatus exit;
};

// How the attempt ended. `failure` is the trainer's own last word, if it had one. In order:
// never started -> LAUNCH_FAILED; done -> SUCCEEDED, even when asked to stop meanwhile; asked to by the user
// -> CANCELLED; asked to by the service, and stopped or killed for it -> STOPPED; a signal of a stranger ->
// KILLED; else the exit code.
AttemptEnd end_of(const ExitRecord& record, const std::optional<protocol::Failure>& failure);

}  // namespace coat::agent
