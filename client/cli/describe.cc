#include "client/cli/describe.h"

#include <algorithm>

#include "client/cli/human.h"
#include "client/cli/output.h"
#include "client/cli/progress_view.h"
#include "client/cli/table.h"
#include "proto/common/byte_size.h"

namespace coat::cli {
namespace {

std::string recipe_of(const v1::Job& job) { return job.spec().has_recipe() ? job.spec().recipe() : "coat"; }

void print_head(const Terminal& terminal, const v1::Job& job) {
  std::ostream& out = terminal.out;
  out << bold(terminal, "Job " + short_name(job.name())) << "  "
      << paint_state(terminal, state_text(job.state())) << "\n";
  Table table({{""}, {""}});
  table.add({"recipe", recipe_of(job)});
  table.add({"data", job.spec().data().path()});
  table.add({"submitted", time_text(job.create_time())});
  if (job.has_start_time()) {
    table.add({"started", time_text(job.start_time()) + ", after " +
                              duration_text(seconds_between(job.create_time(), job.start_time()))});
  }
  if (job.has_end_time()) {
    const auto& begin = job.has_start_time() ? job.start_time() : job.create_time();
    table.add({"ended", time_text(job.end_time()) + ", after " +
                            duration_text(seconds_between(begin, job.end_time()))});
  }
  if (const std::string note = note_of(job); !note.empty()) {
    table.add({job.state() == v1::Job::FAILED ? "failed" : "waits", note});
  }
  if (!job.exit().field().empty()) table.add({"field", job.exit().field()});
  if (job.state() == v1::Job::FAILED && !job.exit().fix().empty())
    table.add({"what to do", job.exit().fix()});
  if (job.state() == v1::Job::PENDING && job.pending_status().queue_position() > 0) {
    table.add({"in the queue", std::to_string(job.pending_status().queue_position())});
  }
  if (job.state() == v1::Job::RUNNING || job.state() == v1::Job::CANCELLING) {
    table.add({"progress", progress_text(job)});
  }
  std::string labels;
  for (const auto& [key, value] :
       std::map<std::string, std::string>(job.spec().labels().begin(), job.spec().labels().end())) {
    labels += (labels.empty() ? "" : ", ") + key + "=" + value;
  }
  if (!labels.empty()) table.add({"labels", labels});
  table.print(out, false, 2);
}

// How far the last loss lies below what letter frequencies alone would give.
std::string entropy_text(const v1::TrainingSummary& summary) {
  const double below = summary.unigram_entropy() - summary.last_loss();
  const std::string entropy = fixed_text(summary.unigram_entropy(), 4);
  if (!(below > 0))
    return entropy + "   the last loss is not below it: nothing was learnt beyond token frequencies";
  return entropy + "   of the text: knowing only how frequent each token is; the last loss is " +
         fixed_text(below, 2) + " below it";
}

void print_training(const Terminal& terminal, const v1::Job& job) {
  const v1::TrainingSummary& summary = job.summary();
  terminal.out << "\n" << bold(terminal, "Training") << "\n";
  Table table({{""}, {""}});
  table.add({"loss, first", fixed_text(summary.first_loss(), 4) + "   nats a token"});
  table.add({"loss, last", fixed_text(summary.last_loss(), 4) + "   mean of the last tenth of the steps"});
  table.add({"unigram entropy", entropy_text(summary)});
  table.add({"steps", thousands_text(summary.steps()) + ", " + thousands_text(summary.tokens()) + " tokens"});
  table.add({"speed",
             thousands_text(static_cast<std::int64_t>(std::clamp(summary.tokens_per_second(), 0.0, 1e15))) +
                 " tokens/s, " + duration_text(summary.wall_seconds()) + " in all"});
  table.add({"parameters", count_text(static_cast<double>(summary.parameters()))});
  table.print(terminal.out, false, 2);
}

void print_quantization(const Terminal& terminal, const v1::TrainingSummary& summary) {
  if (summary.quantization().empty()) return;
  terminal.out << "\n" << bold(terminal, "Quantization error") << ", last measured\n";
  Table table({{"TENSORS"},
               {"FORMAT"},
               {"RELATIVE ERROR", true},
               {"SATURATED", true},
               {"BECAME ZERO", true},
               {"EXPANSION", true}});
  for (const v1::QuantizationError& error : summary.quantization()) {
    table.add({error.tensor_class(), error.format(), percent_text(error.relative_error()),
               percent_text(error.saturated_fraction()), percent_text(error.underflow_fraction()),
               error.mean_expansion() == 0 ? "-" : "x^" + fixed_text(error.mean_expansion(), 2)});
  }
  table.print(terminal.out, true, 2);
}

// Lines of at most the terminal's width, as a block of text.
void print_sample(const Terminal& terminal, const v1::TrainingSummary& summary) {
  if (summary.sample().empty()) return;
  terminal.out << "\n" << bold(terminal, "Text from the trained model") << "\n";
  std::string line;
  const auto flush = [&] {
    terminal.out << "  | " << one_line(line) << "\n";
    line.clear();
  };
  constexpr std::size_t kColumns = 96;
  for (const char c : summary.sample()) {
    const bool character_begins = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (c == '\n' || (character_begins && display_width(line) >= kColumns)) flush();
    if (c != '\n') line += c;
  }
  if (!line.empty()) flush();
}

std::string exit_text(const v1::Attempt& attempt) {
  if (!attempt.has_exit()) return "-";
  const v1::ExitStatus& exit = attempt.exit();
  std::string text = v1::ExitStatus::Reason_Name(exit.reason());
  if (exit.signal() != 0) text += ", signal " + std::to_string(exit.signal());
  if (exit.exit_code() > 0) text += ", code " + std::to_string(exit.exit_code());
  return text;
}

void print_attempts(const Terminal& terminal, const std::vector<v1::Attempt>& attempts) {
  if (attempts.empty()) return;
  terminal.out << "\n" << bold(terminal, "Attempts") << "\n";
  Table table({{"NO", true},
               {"STATE"},
               {"WORKER"},
               {"DEVICES"},
               {"FROM STEP", true},
               {"TO STEP", true},
               {"TIME", true},
               {"EXIT"},
               {"MESSAGE"}});
  for (const v1::Attempt& attempt : attempts) {
    std::string devices;
    for (const int device : attempt.devices())
      devices += (devices.empty() ? "" : ",") + std::to_string(device);
    const auto end = attempt.has_end_time() ? attempt.end_time() : to_timestamp(terminal.clock.system_now());
    const std::string time = attempt.has_start_time()
                                 ? duration_text(std::max(0.0, seconds_between(attempt.start_time(), end)))
                                 : "-";
    table.add({attempt.name().substr(attempt.name().rfind('/') + 1), state_text(attempt.state()),
               short_name(attempt.worker()), devices, std::to_string(attempt.resume_step()),
               std::to_string(attempt.progress().step()), time, exit_text(attempt),
               attempt.exit().message()});
  }
  table.print(terminal.out, true, 2);
}

void print_files(const Terminal& terminal, const JobDetails& details) {
  const v1::TrainingSummary& summary = details.job.summary();
  const std::string worker = details.attempts.empty() ? "" : short_name(details.attempts.back().worker());
  Table table({{""}, {""}});
  if (!summary.checkpoint_path().empty()) {
    table.add({"checkpoint",
               summary.checkpoint_path() + " (step " + std::to_string(summary.checkpoint_step()) + ")"});
  }
  if (!summary.log_path().empty()) table.add({"log", summary.log_path()});
  if (!summary.metrics_path().empty()) table.add({"metrics", summary.metrics_path()});
  if (table.empty()) return;
  terminal.out << "\n" << bold(terminal, "Files") << (worker.empty() ? "" : " on worker " + worker) << "\n";
  table.print(terminal.out, false, 2);
}

void print_events(const Terminal& terminal, const std::vector<v1::Event>& events) {
  if (events.empty()) return;
  terminal.out << "\n" << bold(terminal, "Events") << "\n";
  Table table({{"TIME"}, {"WHAT"}, {"VERB"}, {"BY"}, {"MESSAGE"}});
  for (const v1::Event& event : events) {
    const std::size_t attempt = event.object().find("/attempts/");
    const std::string what = attempt == std::string::npos ? "job" : event.object().substr(attempt + 1);
    table.add({time_text(event.event_time()), what, event.verb(), event.actor(), event.message()});
  }
  table.print(terminal.out, true, 2);
}

}  // namespace

void print_memory(std::ostream& out, const std::string& recipe, const v1::MemoryBreakdown& ours,
                  const v1::MemoryBreakdown& bf16) {
  Table table({{"MEMORY"}, {recipe, true}, {"bf16", true}, {recipe + " needs"}});
  const auto add = [&](const std::string& what, std::int64_t a, std::int64_t b) {
    table.add({what, bytes_text(a), bytes_text(b), factor_text(a, b)});
  };
  add("weights", ours.weights_bytes(), bf16.weights_bytes());
  add("gradients", ours.gradients_bytes(), bf16.gradients_bytes());
  add("first moment", ours.moment1_bytes(), bf16.moment1_bytes());
  add("second moment", ours.moment2_bytes(), bf16.moment2_bytes());
  add("activations", ours.activations_bytes(), bf16.activations_bytes());
  add("workspace", ours.workspace_bytes(), bf16.workspace_bytes());
  add("total", ours.total_bytes(), bf16.total_bytes());
  table.print(out, true, 2);
}

void print_details(const Terminal& terminal, const JobDetails& details) {
  const v1::Job& job = details.job;
  print_head(terminal, job);
  if (job.has_summary()) {
    print_training(terminal, job);
    terminal.out << "\n";
    print_memory(terminal.out, recipe_of(job), job.summary().memory(), job.summary().memory_bf16());
    if (job.summary().memory_peak_bytes() > 0) {
      terminal.out << "  measured at the peak: " << bytes_text(job.summary().memory_peak_bytes()) << "\n";
    }
    print_quantization(terminal, job.summary());
    print_sample(terminal, job.summary());
  }
  print_attempts(terminal, details.attempts);
  print_files(terminal, details);
  print_events(terminal, details.events);
}

}  // namespace coat::cli
