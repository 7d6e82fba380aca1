#include "worker/trainer/trainer.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>

#include <ATen/Parallel.h>

#include "spec/job_spec.h"
#include "worker/core/base/error.h"
#include "worker/core/base/tracked_allocator.h"
#include "worker/core/train/estimate.h"
#include "worker/core/train/memory_meter.h"
#include "worker/core/train/sample_from.h"
#include "worker/core/train/training_run.h"
#include "worker/trainer/command_listener.h"
#include "worker/trainer/event_channel.h"
#include "worker/trainer/failures.h"
#include "worker/trainer/progress_log.h"
#include "worker/trainer/report_conversion.h"
#include "worker/trainer/spec_input.h"

namespace coat::trainer {
namespace {

using protocol::ExitCode;

void tell(const std::string& message) { std::cerr << "coat-trainer: " << message << std::endl; }

// Sends every report as an event and writes the log for people where standard output is free for it.
class Reporter : public train::Observer {
 public:
  Reporter(EventChannel& events, ProgressLog* log) : events_(events), log_(log) {}
  void started(const train::StartReport& report) override {
    events_.send(to_message(report));
    if (log_ != nullptr) log_->started(report);
  }
  void step_done(const train::StepReport& report) override {
    events_.send(to_message(report));
    if (log_ != nullptr) log_->step_done(report);
  }
  void checkpoint_saved(const train::CheckpointReport& report) override {
    events_.send(to_message(report));
    if (log_ != nullptr) log_->checkpoint_saved(report);
  }
  void warn(const std::string& message) override { tell("warning: " + message); }

 private:
  EventChannel& events_;
  ProgressLog* log_;
};

// The same scan and checks as a run's, without its hash.
ExitCode print_estimate(const Options& options, const spec::JobSpec& spec, at::Device device) {
  train::kernels_for(device);
  train::require_sample_prompt(spec);
  const data::TokenStatistics data = data::check_token_data(train::dataset_options(spec));
  const std::int64_t bytes =
      options.launch.memory_bytes > 0 ? options.launch.memory_bytes : train::device_memory_bytes(device);
  std::cout << protocol::to_line(to_message(train::estimate(spec, device.type()), bytes, data.tokens))
            << std::endl;
  return ExitCode::kDone;
}

ExitCode print_sample(const Options& options, at::Device device) {
  const train::SampleRequest request{.folder = options.sample_from,
                                     .prompt = options.prompt,
                                     .tokens = options.tokens,
                                     .temperature = options.temperature,
                                     .seed = options.seed};
  std::cout << train::sample_from(checkpoint::real_file_system(), request, device) << std::endl;
  return ExitCode::kDone;
}

std::unique_ptr<EventChannel> open_events(const Options& options) {
  if (options.launch.event_fd >= 0) return std::make_unique<EventChannel>(options.launch.event_fd, false);
  if (options.events_path.empty()) return std::make_unique<EventChannel>(STDOUT_FILENO, false);
  const int file = ::open(options.events_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    throw SpecError("--events", "cannot open '" + options.events_path + "': " + std::strerror(errno),
                    "name a file that can be written");
  }
  return std::make_unique<EventChannel>(file, true);
}

ExitCode train_job(const Options& options, const spec::JobSpec& spec, at::Device device,
                   train::RunControl& control, EventChannel& events) {
  std::optional<CommandListener> commands;
  if (options.launch.event_fd >= 0) {
    commands.emplace(options.launch.event_fd, control,
                     [](const std::string& message) { tell("warning: " + message); });
  }
  const bool events_elsewhere = options.launch.event_fd >= 0 || !options.events_path.empty();
  ProgressLog log(stdout);
  Reporter reporter(events, events_elsewhere ? &log : nullptr);
  train::RunOptions run_options{.spec = spec,
                                .device = device,
                                .checkpoint_folder = options.launch.checkpoint_dir,
                                .epoch = options.launch.epoch,
                                .resume = options.launch.resume,
                                .memory_bytes = options.launch.memory_bytes};
  if (run_options.checkpoint_folder.empty()) run_options.checkpoint_folder = "checkpoints/" + spec.name;
  train::kernels_for(device);
  train::limit_memory(device, options.launch.memory_bytes);

  train::TrainingRun run(std::move(run_options), train::llama_factory(device), checkpoint::real_file_system(),
                         reporter, control);
  std::exception_ptr error;
  train::RunEnd end = train::RunEnd::kDone;
  try {
    end = run.run();
  } catch (...) {
    error = std::current_exception();
  }
  const auto summary = run.summary();
  ExitCode code = ExitCode::kDone;
  if (error) {
    const protocol::Failure failure = failure_of(error);
    tell(failure.message);
    events.send(failure);
    code = static_cast<ExitCode>(failure.exit_code);
  } else if (end == train::RunEnd::kStopped) {
    code = ExitCode::kStopped;
    const std::string message = "stopped as asked after step " + std::to_string(summary ? summary->steps : 0);
    tell(message);
    events.send(protocol::Failure{.exit_code = static_cast<int>(code),
                                  .message = message,
                                  .fix = "run it again with --resume to go on"});
  }
  if (summary) events.send(to_message(*summary));
  if (summary && events_elsewhere) log.ended(*summary);
  return code;
}

}  // namespace

ExitCode run_trainer(const Options& options) {
  ::signal(SIGPIPE, SIG_IGN);  // a reader that is gone is an error of write(), and no end
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a full disk
  cpu_memory::install();
  train::RunControl control;
  std::unique_ptr<EventChannel> events;
  try {
    // Before any thread: the signals stay blocked in all that come later.
    const SignalListener signals(control);
    require_cpu_features();
    if (options.launch.threads > 0) at::set_num_threads(options.launch.threads);
    const at::Device device = parse_device(options.launch.device);
    if (!options.sample_from.empty()) return print_sample(options, device);
    if (!options.launch.estimate || options.launch.event_fd >= 0 || !options.events_path.empty()) {
      events = open_events(options);
    }
    const spec::JobSpec spec = read_spec(options.launch.spec_path, device);
    if (options.launch.estimate) return print_estimate(options, spec, device);
    return train_job(options, spec, device, control, *events);
  } catch (...) {
    const protocol::Failure failure = failure_of(std::current_exception());
    std::string text = failure.message;
    if (!failure.field.empty()) text = failure.field + ": " + text;
    if (!failure.fix.empty()) text += "; " + failure.fix;
    tell(text);
    if (events) {
      events->send(failure);
    } else if (options.launch.estimate) {
      std::cout << protocol::to_line(protocol::Event{failure}) << std::endl;
    }
    return static_cast<ExitCode>(failure.exit_code);
  }
}

}  // namespace coat::trainer
