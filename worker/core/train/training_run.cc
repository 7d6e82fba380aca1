#include "worker/core/train/training_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "worker/core/base/error.h"
#include "worker/core/train/checkpoint_state.h"
#include "worker/core/train/estimate.h"
#include "worker/core/train/memory_meter.h"
#include "worker/core/train/sampler.h"

namespace coat::train {
namespace {

constexpr std::int64_t kMaxNonFiniteInARow = 3;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How many of the newest losses the mean of the last tenth is over.
std::size_t last_tenth(std::int64_t steps) {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, steps / 10));
}

AdamWOptions adamw_options(const spec::JobSpec& spec) {
  return {.beta1 = spec.optimizer.beta1,
          .beta2 = spec.optimizer.beta2,
          .eps = spec.optimizer.eps,
          .weight_decay = spec.optimizer.weight_decay,
          .clip_norm = spec.optimizer.clip_norm,
          .seed = spec.training.seed};
}

Schedule schedule_of(const spec::JobSpec& spec) {
  return {.kind = spec.optimizer.schedule,
          .peak = spec.optimizer.learning_rate,
          .final_fraction = spec.optimizer.final_lr_fraction,
          .warmup_steps = spec.optimizer.warmup_steps,
          .total_steps = spec.training.steps};
}

// The manifest and the folders beside the tensors.
constexpr std::int64_t kManifestRoom = std::int64_t{1} << 20;

}  // namespace

TrainingRun::TrainingRun(RunOptions options, ModelFactory factory, checkpoint::FileSystem& files,
                         Observer& observer, RunControl& control)
    : options_(std::move(options)),
      factory_(std::move(factory)),
      observer_(observer),
      control_(control),
      store_(files, options_.checkpoint_folder, options_.epoch, options_.spec.checkpoint.keep) {}

TrainingRun::~TrainingRun() = default;

// Everything that can be refused is, in the order of what it costs to find out.
void TrainingRun::prepare() {
  const spec::JobSpec& spec = options_.spec;
  const kernels::Kernels& kernels = kernels_for(options_.device);
  require_sample_prompt(spec);
  const std::int64_t device_bytes =
      options_.memory_bytes > 0 ? options_.memory_bytes : device_memory_bytes(options_.device);
  require_fit(spec, device_bytes, options_.device.type());
  store_.open();
  if (!options_.resume && store_.has_checkpoints()) {
    throw CheckpointError("'" + store_.folder() +
                          "' already holds checkpoints: give --resume to go on from them, or " +
                          "another --checkpoint-dir to start anew");
  }
  store_.require_room(checkpoint_bytes(spec) + kManifestRoom);
  dataset_ = data::open_token_dataset(dataset_options(spec));

  const Recipe& format = recipe(spec.recipe);
  model_ = factory_(spec, kernels);
  optimizer_ = std::make_unique<AdamW>(model_->parameters(), format, adamw_options(spec), kernels);
  const StepOptions step_options{.micro_batch = spec.training.micro_batch,
                                 .accumulation_steps = spec.training.accumulation_steps,
                                 .quantization_interval = spec.metrics.quantization_interval_steps,
                                 .device = options_.device};
  runner_ =
      std::make_unique<StepRunner>(*model_, *optimizer_, *dataset_, format, schedule_of(spec), step_options);
  if (options_.resume) resume();

  summary_.estimate = estimate(spec, options_.device.type());
  summary_.unigram_entropy = dataset_->statistics().unigram_entropy;
  started_ = true;
  observer_.started({.total_steps = spec.training.steps,
                     .resume_step = progress_.step,
                     .unigram_entropy = summary_.unigram_entropy,
                     .data_tokens = dataset_->statistics().tokens,
                     .device_memory_bytes = device_bytes,
                     .estimate = summary_.estimate});
}

void TrainingRun::resume() {
  HostViews parameters(parameter_tensors(model_->parameters()), true);
  HostViews moments(optimizer_->state(), true);
  std::vector<std::string> warnings;
  const checkpoint::Expected expected{.identity = spec_identity(options_.spec, recipe(options_.spec.recipe)),
                                      .parameters = parameters.tensors(),
                                      .optimizer = moments.tensors()};
  const auto loaded = store_.load(expected, &warnings);
  for (const std::string& warning : warnings) observer_.warn(warning);
  if (!loaded) return;
  for (const auto& [field, value] : data_identity(dataset_->identity())) {
    for (const auto& [saved_field, saved_value] : loaded->identity) {
      if (saved_field != field || saved_value == value) continue;
      throw DataError("data.path",
                      "'" + options_.spec.data.path + "' has " + field + " = " + value +
                          ", but the checkpoint '" + loaded->path + "' was trained on a file with " +
                          saved_value,
                      "give the job the file that it started with");
    }
  }
  if (loaded->progress.step > options_.spec.training.steps) {
    throw CheckpointError("the checkpoint '" + loaded->path + "' is of step " +
                          std::to_string(loaded->progress.step) +
                          ", beyond training.steps = " + std::to_string(options_.spec.training.steps) +
                          ": raise training.steps, or start without --resume in another checkpoint folder");
  }
  parameters.write_back();
  moments.write_back();
  progress_ = loaded->progress;
  summary_.checkpoint_path = loaded->path;
  summary_.checkpoint_step = progress_.step;
}

RunEnd TrainingRun::run() {
  start_seconds_ = now_seconds();
  prepare();
  const std::int64_t interval = options_.spec.checkpoint.interval_steps;
  while (!finished()) {
    if (!step()) {
      save();
      return RunEnd::kStopped;
    }
    const bool due = interval > 0 && progress_.step % interval == 0;
    if (control_.take_checkpoint_request() || due || finished()) save();
  }
  summary_.sample = draw_sample();
  return RunEnd::kDone;
}

bool TrainingRun::step() {
  const double start = now_seconds();
  const auto result = runner_->run(progress_.step + 1, progress_.data_position, control_);
  if (!result) return false;
  note(*result, now_seconds() - start);
  if (progress_.consecutive_nonfinite_steps >= kMaxNonFiniteInARow) {
    throw NonFiniteLossError("gradients were not finite in " + std::to_string(kMaxNonFiniteInARow) +
                             " steps in a row, the last one step " + std::to_string(progress_.step) +
                             ": lower optimizer.learning_rate or lengthen optimizer.warmup_steps");
  }
  return true;
}

void TrainingRun::note(const StepResult& result, double seconds) {
  const std::int64_t total = options_.spec.training.steps;
  ++progress_.step;
  progress_.data_position += runner_->sequences_per_step();
  progress_.tokens += result.tokens;
  progress_.nonfinite_steps += result.skipped ? 1 : 0;
  progress_.consecutive_nonfinite_steps = result.skipped ? progress_.consecutive_nonfinite_steps + 1 : 0;
  if (progress_.step == 1) progress_.first_loss = result.loss;
  std::vector<double>& recent = progress_.recent_losses;
  recent.push_back(result.loss);
  if (recent.size() > last_tenth(total)) {
    recent.erase(recent.begin(), recent.end() - static_cast<std::ptrdiff_t>(last_tenth(total)));
  }
  throughput_.add(result.tokens, seconds);
  if (!result.quantization.empty()) quantization_ = result.quantization;

  const MemoryReading memory = read_memory(options_.device);
  observer_.step_done({.step = progress_.step,
                       .total_steps = total,
                       .loss = result.loss,
                       .grad_norm = result.grad_norm,
                       .learning_rate = result.learning_rate,
                       .tokens_per_second = seconds > 0 ? static_cast<double>(result.tokens) / seconds : 0,
                       .tokens = progress_.tokens,
                       .memory_bytes = memory.allocated,
                       .memory_reserved_bytes = memory.reserved,
                       .memory_peak_bytes = memory.peak,
                       .nonfinite_steps = progress_.nonfinite_steps,
                       .remaining_seconds = throughput_.remaining_seconds(total - progress_.step),
                       .quantization = result.quantization});
}

void TrainingRun::save() {
  if (progress_.step == summary_.checkpoint_step) return;  // nothing is new; before the first step both are 0
  const double start = now_seconds();
  const Recipe& format = recipe(options_.spec.recipe);
  Identity identity = spec_identity(options_.spec, format);
  for (auto& entry : data_identity(dataset_->identity())) identity.push_back(std::move(entry));
  const HostViews parameters(parameter_tensors(model_->parameters()), false);
  const HostViews moments(optimizer_->state(), false);
  const checkpoint::Saved saved = store_.save({.progress = progress_,
                                               .identity = std::move(identity),
                                               .spec_json = spec::to_json(options_.spec),
                                               .parameters = parameters.tensors(),
                                               .optimizer = moments.tensors()});
  summary_.checkpoint_path = saved.path;
  summary_.checkpoint_step = saved.step;
  observer_.checkpoint_saved(
      {.step = saved.step, .path = saved.path, .bytes = saved.bytes, .seconds = now_seconds() - start});
}

std::string TrainingRun::draw_sample() {
  const spec::SampleSpec& sample = options_.spec.sample;
  if (sample.prompt.empty()) return "";
  return sample_text(*model_,
                     {.prompt = sample.prompt,
                      .tokens = sample.tokens,
                      .temperature = sample.temperature,
                      .seed = options_.spec.training.seed,
                      .context = options_.spec.training.sequence_length},
                     options_.device, [this] { return control_.stop_requested(); });
}

std::optional<SummaryReport> TrainingRun::summary() const {
  if (!started_) return std::nullopt;
  SummaryReport report = summary_;
  report.first_loss = progress_.first_loss;
  const std::size_t count = std::min(progress_.recent_losses.size(), last_tenth(progress_.step));
  if (count > 0) {
    const auto end = progress_.recent_losses.end();
    report.last_loss =
        std::accumulate(end - static_cast<std::ptrdiff_t>(count), end, 0.0) / static_cast<double>(count);
  }
  report.steps = progress_.step;
  report.tokens = progress_.tokens;
  report.tokens_per_second = throughput_.tokens_per_second();
  report.wall_seconds = now_seconds() - start_seconds_;
  report.memory_peak_bytes = read_memory(options_.device).peak;
  report.quantization = quantization_;
  return report;
}

}  // namespace coat::train
