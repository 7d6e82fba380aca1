// One optimizer step: micro-batches, accumulated gradients, schedule, AdamW.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/core/data/dataset.h"
#include "worker/core/model/language_model.h"
#include "worker/core/optim/adamw.h"
#include "worker/core/quant/recipe.h"
#include "worker/core/train/report.h"
#include "worker/core/train/run_control.h"

namespace coat::train {

struct StepOptions {
  std::int64_t micro_batch = 1;            // sequences
  std::int64_t accumulation_steps = 1;     // micro-batches
  std::int64_t quantization_interval = 0;  // measured on the first step and on every multiple of it; 0: never
  at::Device device = at::kCPU;
};

struct StepResult {
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;  // counting ones
  bool skipped = false;     // gradients were not finite: parameters and moments are as before
  std::vector<QuantizationFigure> quantization;
};

// Rows of `batch` from `first` on, as tensors on `device`.
MicroBatch micro_batch_of(const data::SequenceBatch& batch, std::int64_t first, std::int64_t rows,
                          at::Device device);

// Not thread-safe; what it refers to must outlive it. Keeps nothing from step to step, so a step depends on
// the parameters, the optimizer state, its number and the data position alone.
class StepRunner {
 public:
  StepRunner(LanguageModel& model, AdamW& optimizer, const data::Dataset& dataset, const Recipe& recipe,
             const Schedule& schedule, const StepOptions& options)
      : model_(model),
        optimizer_(optimizer),
        dataset_(dataset),
        recipe_(recipe),
        schedule_(schedule),
        options_(options) {}

  // Step number `step`, counted from 1, on the sequences from `data_position` on. nullopt: a stop was asked
  // for before all micro-batches were done; then nothing has changed. Throws NonFiniteLossError, also with
  // nothing changed.
  std::optional<StepResult> run(std::int64_t step, std::int64_t data_position, const RunControl& control);

  std::int64_t sequences_per_step() const { return options_.micro_batch * options_.accumulation_steps; }

 private:
  bool measures(std::int64_t step) const;

  LanguageModel& model_;
  AdamW& optimizer_;
  const data::Dataset& dataset_;
  const Recipe& recipe_;
  Schedule schedule_;
  StepOptions options_;
};

}  // namespace coat::train
