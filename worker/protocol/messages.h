// What the trainer and the agent say to each other, as JSON lines over a socket pair that the trainer
// inherits
// (`--event-fd N`); without an agent the trainer writes the same lines to `--events FILE`.
// Trainer -> agent: events, each an object with "event". Agent -> trainer: commands, each an object with
// "command". Non-finite numbers are written as the strings "NaN", "Infinity" and "-Infinity", as protobuf's
// JSON does. An unknown event or command is an error of the reader; unknown fields are too.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace coat::protocol {

// Names as in coat.v1.QuantizationError.
struct ExpansionShare {
  double below = 0;
  double share = 0;
  bool operator==(const ExpansionShare&) const = default;
};

struct QuantizationError {
  std::string tensor_class;
  std::string format;
  double relative_error = 0;
  double saturated_fraction = 0;
  double underflow_fraction = 0;
  double mean_expansion = 0;
  std::vector<ExpansionShare> expansion;
  bool operator==(const QuantizationError&) const = default;
};

// Bytes, as in coat.v1.MemoryBreakdown.
struct MemoryBreakdown {
  std::int64_t weights_bytes = 0;
  std::int64_t gradients_bytes = 0;
  std::int64_t moment1_bytes = 0;
  std::int64_t moment2_bytes = 0;
  std::int64_t activations_bytes = 0;
  std::int64_t workspace_bytes = 0;
  std::int64_t total_bytes = 0;
  bool operator==(const MemoryBreakdown&) const = default;
};

// The answer of `coat-trainer --estimate` (one line on standard output), and part of Started.
struct Estimate {
  std::string recipe;
  MemoryBreakdown memory;
  MemoryBreakdown memory_bf16;
  std::int64_t parameters = 0;
  std::int64_t device_memory_bytes = 0;
  bool fits = false;
  double saved_bytes_per_token_per_layer = 0;
  std::int64_t data_tokens = 0;
  bool operator==(const Estimate&) const = default;
};

// The spec, data, checkpoint and memory were found good; training begins.
struct Started {
  std::int64_t total_steps = 0;
  std::int64_t resume_step = 0;  // 0: from the beginning
  double unigram_entropy = 0;    // nats a token, of the whole data file
  Estimate estimate;
  bool operator==(const Started&) const = default;
};

// One optimizer step is done. The agent appends its JSON, as a coat.v1.MetricSample, to the attempt's metrics
// file.
struct Step {
  std::int64_t step = 0;  // counted from 1
  double loss = 0;        // nats a token, mean over the step's tokens
  double grad_norm = 0;   // before clipping
  double learning_rate = 0;
  double tokens_per_second = 0;  // of this step
  std::int64_t tokens = 0;       // seen by the job so far
  std::int64_t memory_bytes = 0;
  std::int64_t memory_reserved_bytes = 0;
  std::int64_t memory_peak_bytes = 0;
  std::int64_t nonfinite_steps = 0;
  double remaining_seconds = 0;
  std::vector<QuantizationError> quantization;  // empty on steps where it was not measured
  bool operator==(const Step&) const = default;
};

// A checkpoint is complete: its manifest is in place and synced.
struct Checkpoint {
  std::int64_t step = 0;
  std::string path;
  std::int64_t bytes = 0;
  double seconds = 0;
  bool operator==(const Checkpoint&) const = default;
};

// The last event of a run that trained, whatever its end.
struct Summary {
  double first_loss = 0;
  double last_loss = 0;
  double unigram_entropy = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double tokens_per_second = 0;
  double wall_seconds = 0;
  std::int64_t parameters = 0;
  MemoryBreakdown memory;
  MemoryBreakdown memory_bf16;
  std::int64_t memory_peak_bytes = 0;
  std::vector<QuantizationError> quantization;
  std::string sample;
  std::string checkpoint_path;
  std::int64_t checkpoint_step = 0;
  bool operator==(const Summary&) const = default;
};

// Why the trainer is about to end with an exit code other than done.
struct Failure {
  int exit_code = 0;
  std::string message;
  std::string field;  // of a bad spec or data
  std::string fix;
  bool operator==(const Failure&) const = default;
};

using Event = std::variant<Started, Step, Checkpoint, Summary, Failure>;

// Save a checkpoint at the next step border and go on.
struct SaveCheckpoint {
  bool operator==(const SaveCheckpoint&) const = default;
};
// Save a checkpoint at the next step border and end with kStopped.
struct StopAfterCheckpoint {
  bool operator==(const StopAfterCheckpoint&) const = default;
};

using Command = std::variant<SaveCheckpoint, StopAfterCheckpoint>;

// One line, without the line feed.
std::string to_line(const Event& event);
std::string to_line(const Command& command);
std::string to_line(const Estimate& estimate);

// Throw std::invalid_argument with the reason and the field.
Event parse_event(const std::string& line);
Command parse_command(const std::string& line);
Estimate parse_estimate(const std::string& line);

// The step as one line of the metrics file: the JSON of coat.v1.MetricSample, with the given time.
std::string to_metric_line(const Step& step, double unix_seconds);

}  // namespace coat::protocol
