#include "client/cli/progress_view.h"

#include <algorithm>

#include "client/cli/human.h"
#include "client/cli/output.h"
#include "client/cli/table.h"
#include "proto/common/byte_size.h"

namespace coat::cli {
namespace {

constexpr std::chrono::seconds kLineInterval{5};

std::int64_t total_steps(const v1::Job& job) {
  return job.progress().total_steps() > 0 ? job.progress().total_steps() : job.spec().training().steps();
}

// "[=====>    ]".
std::string bar(std::int64_t step, std::int64_t total) {
  constexpr std::size_t kCells = 20;
  const double share =
      total > 0 ? std::clamp(static_cast<double>(step) / static_cast<double>(total), 0.0, 1.0) : 0.0;
  const auto full = static_cast<std::size_t>(share * kCells);
  std::string cells(full, '=');
  if (full < kCells) cells += '>';
  cells.resize(kCells, ' ');
  return "[" + cells + "]";
}

std::string errors_text(const v1::Progress& progress) {
  std::string text;
  for (const v1::QuantizationError& error : progress.quantization()) {
    text += (text.empty() ? "" : ", ") + error.tensor_class() + " " + percent_text(error.relative_error());
  }
  return text;
}

}  // namespace

std::string progress_text(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  std::string text = "step " + std::to_string(progress.step()) + "/" + std::to_string(total_steps(job));
  if (progress.step() == 0) return text;
  text += "  loss " + fixed_text(progress.loss(), 4) + "  " + count_text(progress.tokens_per_second()) +
          " tokens/s";
  if (progress.memory_bytes() > 0) text += "  memory " + bytes_text(progress.memory_bytes());
  if (const std::string errors = errors_text(progress); !errors.empty()) text += "  error " + errors;
  if (progress.has_remaining_duration() && job.state() == v1::Job::RUNNING) {
    text += "  left " + duration_text(seconds_of(progress.remaining_duration()));
  }
  return text;
}

std::string outcome_text(const Terminal& terminal, const v1::Job& job) {
  std::string text = short_name(job.name()) + " " + paint_state(terminal, state_text(job.state()));
  if (job.state() == v1::Job::SUCCEEDED) {
    const v1::TrainingSummary& summary = job.summary();
    text += ": loss " + fixed_text(summary.first_loss(), 4) + " -> " + fixed_text(summary.last_loss(), 4) +
            " in " + std::to_string(summary.steps()) + " steps";
    if (summary.wall_seconds() > 0) text += ", " + duration_text(summary.wall_seconds());
    return text + "\n";
  }
  const v1::ExitStatus& exit = job.exit();
  if (job.state() == v1::Job::FAILED) {
    text += ": " + v1::ExitStatus::Reason_Name(exit.reason());
    if (!exit.field().empty()) text += ", " + exit.field();
    if (!exit.message().empty()) text += ": " + one_line(exit.message());
    if (!exit.fix().empty()) text += "\n  what to do: " + one_line(exit.fix());
  } else if (job.progress().step() > 0) {
    text += " at " + progress_text(job);
  }
  return text + "\n";
}

ProgressView::ProgressView(const Terminal& terminal, std::ostream& out, bool is_tty)
    : terminal_(terminal), out_(out), is_tty_(is_tty) {}

void ProgressView::show(const v1::Job& job) {
  show_state(job);
  if (job.state() == v1::Job::PENDING || job.attempt_count() == 0) return;
  const std::int64_t step = job.progress().step();
  const SteadyTime now = terminal_.clock.now();
  if (is_tty_) {
    rewrite(bar(step, total_steps(job)) + " " + progress_text(job));
  } else if (step > 0 && step != last_step_ && (last_step_ <= 0 || now - last_line_time_ >= kLineInterval)) {
    out_ << progress_text(job) << std::endl;
    last_line_time_ = now;
  } else {
    return;
  }
  last_step_ = step;
}

void ProgressView::show_state(const v1::Job& job) {
  std::string state = state_text(job.state());
  if (job.state() == v1::Job::FAILED || job.state() == v1::Job::SUCCEEDED) return;  // outcome_text tells it
  if (const std::string note = note_of(job); !note.empty()) state += "  " + one_line(note);
  if (job.state() == v1::Job::RUNNING && job.attempt_count() > 1) {
    state += "  attempt " + std::to_string(job.attempt_count());
  }
  if (state == last_state_) return;
  last_state_ = state;
  // A pending job's reason may change often; on a terminal it takes the place of the bar.
  if (is_tty_ && job.state() == v1::Job::PENDING) return rewrite(state);
  say(state);
}

void ProgressView::say(const std::string& text) {
  finish();
  out_ << text << std::endl;
}

void ProgressView::finish() {
  if (bar_shown_) out_ << "\r\x1b[K" << std::flush;
  bar_shown_ = false;
}

void ProgressView::rewrite(const std::string& line) {
  const std::size_t width = terminal_.width > 1 ? static_cast<std::size_t>(terminal_.width) - 1 : 1;
  out_ << "\r\x1b[K" << cut_to_width(line, width) << std::flush;
  bar_shown_ = true;
}

}  // namespace coat::cli
