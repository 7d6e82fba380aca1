// A whole job in this process: data, ledger, checkpoint folder, model, steps, checkpoints, sample.
//
// What ends a run
// - all steps done: kDone. A stop asked for: the step in work is dropped, the last complete one saved,
// kStopped; where no
//   step is complete yet there is nothing to save.
// - a loss that is not finite: NonFiniteLossError at once. Gradients that are not finite: the step is skipped
// (it counts, its
//   data is used up, parameters and moments stay), and the third skipped step in a row is a
//   NonFiniteLossError. Neither is saved: the next attempt goes on from the last checkpoint.
// - the errors of worker/core/base/error.h, each with what to change.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "spec/job_spec.h"
#include "worker/core/checkpoint/checkpoint_store.h"
#include "worker/core/data/dataset.h"
#include "worker/core/model/language_model.h"
#include "worker/core/optim/adamw.h"
#include "worker/core/train/report.h"
#include "worker/core/train/run_control.h"
#include "worker/core/train/step_runner.h"
#include "worker/core/train/throughput.h"

namespace coat::train {

struct RunOptions {
  spec::JobSpec spec;  // valid by spec::validate
  at::Device device = at::kCPU;
  std::string checkpoint_folder;
  std::int64_t epoch = 0;
  bool resume = false;
  std::int64_t memory_bytes = 0;  // what the job may hold; 0: all that the device has
};

enum class RunEnd { kDone, kStopped };

using ModelFactory =
    std::function<std::unique_ptr<LanguageModel>(const spec::JobSpec&, const kernels::Kernels&)>;
// make_llama of the spec, on `device`.
ModelFactory llama_factory(at::Device device);

// The kernels of a device, which becomes the thread's current one. Throws SpecError of field
// resources.device where this build has none.
const kernels::Kernels& kernels_for(at::Device device);

// The token dataset that a spec names.
data::TokenDatasetOptions dataset_options(const spec::JobSpec& spec);

// Throws SpecError of field sample.prompt for a prompt that the model cannot read.
void require_sample_prompt(const spec::JobSpec& spec);

// One run. Not thread-safe; `control` may be used from other threads, and what the run refers to must outlive
// it.
class TrainingRun {
 public:
  TrainingRun(RunOptions options, ModelFactory factory, checkpoint::FileSystem& files, Observer& observer,
              RunControl& control);
  ~TrainingRun();

  RunEnd run();
  // After run() ended or threw: how far it came; nothing where no training had begun.
  std::optional<SummaryReport> summary() const;

 private:
  void prepare();
  void resume();
  bool step();  // false: a stop was asked for
  void save();
  void note(const StepResult& result, double seconds);
  std::string draw_sample();
  bool finished() const { return progress_.step >= options_.spec.training.steps; }

  RunOptions options_;
  ModelFactory factory_;
  Observer& observer_;
  RunControl& control_;
  checkpoint::Store store_;

  std::unique_ptr<data::Dataset> dataset_;
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<StepRunner> runner_;
  checkpoint::Progress progress_;
  Throughput throughput_;
  std::vector<QuantizationFigure> quantization_;
  SummaryReport summary_;
  double start_seconds_ = 0;
  bool started_ = false;
};

}  // namespace coat::train
