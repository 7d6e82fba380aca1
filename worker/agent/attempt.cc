#include "worker/agent/attempt.h"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include <spdlog/spdlog.h>

#include "worker/agent/cgroup.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/file_lock.h"
#include "worker/agent/process.h"
#include "worker/agent/supervisor.h"

namespace coat::agent {
namespace {

constexpr std::int64_t kRunningSequence = 1;
constexpr std::int64_t kStoppingSequence = 2;
constexpr std::int64_t kEndSequence = 3;
// Beyond the grace and the kill limit, before a supervisor counts as hung.
constexpr std::chrono::seconds kSupervisorSlack{5};

SteadyTime after(SteadyTime now, double seconds) {
  return now + std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e8) * 1e3));
}

}  // namespace

Attempt::Attempt(AttemptFiles files, AttemptRecord record, Clock& clock)
    : files_(std::move(files)),
      record_(std::move(record)),
      clock_(clock),
      reader_(files_),
      created_(clock.now()) {}

std::unique_ptr<Attempt> Attempt::adopt(const AttemptFiles& files, Clock& clock) {
  const auto text = read_file(files.attempt());
  if (!text) throw std::runtime_error("no attempt.json in " + files.folder.string());
  auto attempt = std::make_unique<Attempt>(files, parse_attempt_record(*text), clock);
  if (const auto stop = read_file(files.stop())) attempt->stop_ = parse_stop_request(*stop);
  attempt->stage_ = Stage::kRunning;
  // With the lock in hand no supervisor can come to life late: the end is ours to write.
  if (const auto lock = FileLock::try_acquire(files.lock()); lock && !read_file(files.exit())) {
    if (!read_file(files.supervisor())) {
      ExitRecord exit;
      exit.stop = attempt->stop_;
      exit.supervisor_error = "the worker daemon died while it started the attempt";
      attempt->give_up(exit);
    } else {
      attempt->on_supervisor_gone();
    }
  }
  if (attempt->stop_ && attempt->stage_ == Stage::kRunning) {
    attempt->stop_deadline_ = after(clock.now(), attempt->stop_->grace_seconds);
  }
  attempt->poll();
  return attempt;
}

void Attempt::launch(const std::filesystem::path& supervisor) {
  try {
    UniqueFd log(::open(files_.supervisor_log().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    SpawnOptions options;
    options.arguments = {supervisor.string(), "supervise", "--dir", files_.folder.string()};
    options.stdout_fd = log.get();
    options.stderr_fd = log.get();
    supervisor_pid_ = spawn(options);
    stage_ = Stage::kRunning;
  } catch (const std::system_error& error) {
    ExitRecord exit;
    exit.launch_error = error.what();
    give_up(exit);
  }
}

void Attempt::give_up(const ExitRecord& exit) {
  exit_ = exit;
  exit_->end_time = std::chrono::duration<double>(clock_.system_now().time_since_epoch()).count();
  stage_ = Stage::kEnded;
  try {
    write_durably(files_.exit(), to_json(*exit_));
  } catch (const std::system_error& error) {
    spdlog::error("{}: its end is known to this process only: {}", record_.attempt, error.what());
  }
}

void Attempt::request_stop(const StopRequest& request) {
  if (stage_ == Stage::kEnded) {
    // A fence also makes the rest of its story unwanted.
    if (request.fence) stop_ = request;
    return;
  }
  StopRequest merged = request;
  if (stop_) {
    merged.user_cancel |= stop_->user_cancel;
    merged.fence |= stop_->fence;
    merged.grace_seconds = std::min(merged.grace_seconds, stop_->grace_seconds);
    if (!request.user_cancel && !request.fence) merged.reason = stop_->reason;
  }
  stop_ = merged;
  if (stage_ == Stage::kWaiting) {
    ExitRecord exit;
    exit.stop = merged;
    give_up(exit);
    return;
  }
  const auto deadline = after(clock_.now(), merged.fence ? 0 : merged.grace_seconds);
  stop_deadline_ = stop_deadline_ ? std::min(*stop_deadline_, deadline) : deadline;
  if (orphan_deadline_) orphan_deadline_ = std::min(*orphan_deadline_, deadline);
  try {
    write_durably(files_.stop(), to_json(merged));
  } catch (const std::system_error& error) {
    spdlog::error("{}: {}", record_.attempt, error.what());
  }
}

bool Attempt::supervisor_alive() {
  if (supervisor_pid_ == 0) return is_locked(files_.lock());
  ChildStatus status;
  if (!try_reap(supervisor_pid_, &status)) return true;
  supervisor_pid_ = 0;
  return false;
}

void Attempt::poll() {
  if (stage_ == Stage::kWaiting || stage_ == Stage::kEnded) return;
  if (!processes_) {
    if (const auto text = read_file(files_.supervisor())) processes_ = parse_supervisor_record(*text);
  }
  // Alive is asked first: what it wrote before it died is then there to be read.
  const bool alive = stage_ == Stage::kRunning && supervisor_alive();
  progress_changed |= reader_.poll();
  if (stage_ == Stage::kRunning && !alive) {
    if (const auto text = read_file(files_.exit())) {
      read_exit(*text);
    } else {
      on_supervisor_gone();
    }
  } else if (alive && stop_deadline_ && clock_.now() > *stop_deadline_ + kKillLimit + kSupervisorSlack) {
    spdlog::error("{}: its supervisor does not answer and is killed", record_.attempt);
    if (processes_) ::kill(processes_->supervisor.pid, SIGKILL);
    if (supervisor_pid_ != 0) ::kill(supervisor_pid_, SIGKILL);
  }
  if (stage_ == Stage::kOrphaned) end_orphans();
}

void Attempt::read_exit(const std::string& text) {
  try {
    exit_ = parse_exit_record(text);
    if (exit_->stop) stop_ = exit_->stop;
    stage_ = Stage::kEnded;
  } catch (const std::runtime_error& error) {
    ExitRecord exit;
    exit.stop = stop_;
    exit.supervisor_error = error.what();
    give_up(exit);
  }
}

void Attempt::on_supervisor_gone() {
  if (!processes_) {
    if (const auto text = read_file(files_.supervisor())) processes_ = parse_supervisor_record(*text);
  }
  spdlog::warn("{}: its supervisor is gone without a record of its end", record_.attempt);
  stage_ = Stage::kOrphaned;
  // The trainer got SIGTERM from the kernel at that moment: it may save and stop.
  const double grace = stop_ ? (stop_->fence ? 0 : stop_->grace_seconds) : record_.stop_grace_seconds;
  orphan_deadline_ = after(clock_.now(), grace);
}

void Attempt::end_orphans() {
  ExitRecord exit;
  exit.stop = stop_;
  exit.supervisor_error =
      "the supervisor of the attempt died: " + read_range(files_.supervisor_log(), 0, 400);
  if (processes_ && processes_->boot == boot_id()) {
    if (is_alive(processes_->trainer) && clock_.now() < *orphan_deadline_) return;
    end_cgroup(processes_->cgroup);
    exit.survivors = kill_tree(processes_->trainer, false, kKillLimit);
    kill_strays();
  } else if (processes_) {
    exit.supervisor_error = "the machine was restarted while the attempt ran";
  }
  reader_.poll();
  give_up(exit);
}

std::int64_t Attempt::report_sequence() const {
  if (stage_ == Stage::kEnded) return kEndSequence;
  if (!processes_) return 0;
  return stop_ ? kStoppingSequence : kRunningSequence;
}

v1::AttemptReport Attempt::report(std::int64_t sequence) const {
  v1::AttemptReport report;
  report.set_attempt(record_.attempt);
  report.set_epoch(record_.epoch);
  report.set_report_sequence(sequence);
  const TrainingState& state = training();
  report.set_state(stop_ ? v1::Attempt::STOPPING : v1::Attempt::RUNNING);
  if (state.step || state.started) {
    const double now = std::chrono::duration<double>(clock_.system_now().time_since_epoch()).count();
    protocol::Step step = state.step.value_or(protocol::Step{});
    if (!state.step) step.step = state.started->resume_step;
    *report.mutable_progress() = to_progress(
        step, state.started ? state.started->total_steps : 0,
        state.checkpoint ? state.checkpoint->step : (state.started ? state.started->resume_step : 0), now);
  }
  if (state.started) report.set_resume_step(state.started->resume_step);
  if (stage_ != Stage::kEnded) return report;
  const AttemptEnd ended = end();
  report.set_state(ended.state);
  *report.mutable_exit() = ended.exit;
  if (state.summary) *report.mutable_summary() = to_message(*state.summary, files_.log(), files_.metrics());
  report.set_log_bytes(size_of_file(files_.log()));
  report.set_metrics_bytes(size_of_file(files_.metrics()));
  return report;
}

bool Attempt::delivered() const {
  if (stage_ != Stage::kEnded) return false;
  if (fenced()) return true;
  return end_acked && log_stream.complete(size_of_file(files_.log())) &&
         metrics_stream.complete(size_of_file(files_.metrics()));
}

}  // namespace coat::agent
