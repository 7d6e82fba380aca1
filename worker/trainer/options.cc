#include "worker/trainer/options.h"

#include <sstream>

#include <CLI/CLI.hpp>

namespace coat::trainer {
namespace {

constexpr const char* kDescription =
    "Runs one training job and exits. A worker daemon starts it; it also runs alone.";

constexpr const char* kExamples = R"(
Examples:
  coat-trainer --spec job.json --checkpoint-dir run1 --events run1/events.jsonl
  coat-trainer --spec job.json --checkpoint-dir run1 --resume
  coat-trainer --spec job.json --estimate
  coat-trainer --sample-from run1 --prompt "In the beginning" --tokens 100

Exit codes: 0 done, 64 bad spec, 65 data, 66 checkpoint, 70 internal, 71 out of device memory, 72 non-finite loss,
73 collective failed, 74 device fault, 85 stopped after a checkpoint, 86 fenced.
)";

void add_options(CLI::App& app, Options& options) {
  protocol::Launch& launch = options.launch;
  auto* spec = app.add_option("--spec", launch.spec_path, "The job, as the JSON form of coat.v1.JobSpec");
  app.add_option("--checkpoint-dir", launch.checkpoint_dir,
                 "The job's own folder over all its attempts (default: checkpoints/<name of the job>)");
  app.add_option("--device", launch.device, "cpu:0 or cuda:N")->capture_default_str();
  app.add_option("--threads", launch.threads, "CPU threads; 0: all")->check(CLI::Range(0, 4096));
  app.add_option("--memory-bytes", launch.memory_bytes, "What the job may hold on the device; 0: all of it")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--resume", launch.resume, "Go on from the newest complete checkpoint, if there is one");
  app.add_option("--epoch", launch.epoch, "Of the attempt: owns the checkpoint folder against lower ones")
      ->check(CLI::NonNegativeNumber);
  auto* event_fd = app.add_option("--event-fd", launch.event_fd, "Inherited socket for events and commands")
                       ->check(CLI::NonNegativeNumber);
  app.add_option("--events", options.events_path, "Append events to this file (default: standard output)")
      ->excludes(event_fd);
  app.add_flag("--estimate", launch.estimate,
               "Print the memory ledger as one JSON line and end; train nothing");
  auto* sample = app.add_option("--sample-from", options.sample_from,
                                "Print text from a checkpoint and end: step-... or a job's checkpoint folder")
                     ->excludes(spec);
  app.add_option("--prompt", options.prompt, "What the text begins with (default: the job's)")->needs(sample);
  app.add_option("--tokens", options.tokens, "New tokens of the text")
      ->needs(sample)
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--temperature", options.temperature, "0: the likeliest token each time")
      ->needs(sample)
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--seed", options.seed, "Of the drawing of tokens")->needs(sample);
  app.add_flag("--version", options.version, "Print the version and end");
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, "coat-trainer");
  app.footer(kExamples);
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    throw UsageError(app.help(), true);
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; see coat-trainer --help", false);
  }
  if (!options.version && options.launch.spec_path.empty() && options.sample_from.empty()) {
    throw UsageError("--spec FILE or --sample-from FOLDER is needed; see coat-trainer --help", false);
  }
  return options;
}

}  // namespace coat::trainer
