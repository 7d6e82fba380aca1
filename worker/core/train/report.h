// What a run tells of itself: plain figures, for whoever observes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/core/base/memory_ledger.h"

namespace coat::train {

// A step of the cumulative histogram of expansion exponents.
struct ExpansionShare {
  double below = 0;  // an exponent k
  double share = 0;  // of the groups, whose k is smaller
};

struct QuantizationFigure {
  // "activation", "weight", "gradient", "moment1", "moment2", or "update": m / (sqrt(v) + eps) of both
  // moments
  std::string tensor_class;
  std::string format;             // "e4m3", "e5m2", "bf16"; of a moment name_of(MomentCode), of "update" both
  double relative_error = 0;      // ||x_hat - x|| / ||x||
  double saturated_fraction = 0;  // of elements
  double underflow_fraction = 0;
  double mean_expansion = 0;              // mean exponent k over groups; 0 where nothing is expanded
  std::vector<ExpansionShare> expansion;  // by rising `below`; empty where nothing is expanded
};

// Bytes by the closed-form ledger; the same job with recipe bf16 beside it.
struct TrainingEstimate {
  std::string recipe;
  MemoryLedger memory;
  MemoryLedger memory_bf16;
  std::int64_t parameters = 0;
  double saved_bytes_per_token_per_layer = 0;
};

struct StartReport {
  std::int64_t total_steps = 0;
  std::int64_t resume_step = 0;
  double unigram_entropy = 0;  // nats a token
  std::int64_t data_tokens = 0;
  std::int64_t device_memory_bytes = 0;
  TrainingEstimate estimate;
};

struct StepReport {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  double loss = 0;  // nats a token, mean over the step's counting tokens
  double grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  std::int64_t tokens = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t memory_reserved_bytes = 0;
  std::int64_t memory_peak_bytes = 0;
  std::int64_t nonfinite_steps = 0;
  double remaining_seconds = 0;
  std::vector<QuantizationFigure> quantization;  // empty where it was not measured
};

struct CheckpointReport {
  std::int64_t step = 0;
  std::string path;
  std::int64_t bytes = 0;
  double seconds = 0;
};

struct SummaryReport {
  double first_loss = 0;
  double last_loss = 0;  // mean over the last tenth of the steps, at least one
  double unigram_entropy = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double tokens_per_second = 0;  // of this process, without start and checkpoints
  double wall_seconds = 0;       // of this process
  TrainingEstimate estimate;
  std::int64_t memory_peak_bytes = 0;
  std::vector<QuantizationFigure> quantization;  // the last measured
  std::string sample;
  std::string checkpoint_path;
  std::int64_t checkpoint_step = 0;
};

// Called on the thread that trains, in order.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void started(const StartReport& report) = 0;
  virtual void step_done(const StepReport& report) = 0;
  virtual void checkpoint_saved(const CheckpointReport& report) = 0;
  virtual void warn(const std::string& message) = 0;
};

}  // namespace coat::train
