#include "worker/agent/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "worker/agent/attempt_record.h"
#include "worker/agent/cgroup.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/event_recorder.h"
#include "worker/agent/file_lock.h"
#include "worker/agent/process.h"
#include "worker/protocol/messages.h"

namespace coat::agent {
namespace {

using Steady = std::chrono::steady_clock;

constexpr int kMaxComplaints = 20;
constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kStoppingTick{20};
constexpr std::chrono::seconds kExitRecordPatience{60};

Steady::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Steady::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e8)));
}

class Supervisor {
 public:
  Supervisor(AttemptFiles files, AttemptRecord record);
  int run();

 private:
  void block_signals();
  void start_trainer();
  void loop();
  void read_signals();
  void read_events();
  void read_stop_file();
  void request_stop(const StopRequest& request);
  void advance_stop();
  void watch_daemon();
  bool trainer_ended() const;
  void end_trainer_tree();
  bool write_exit_record();
  void complain(const std::string& line);

  AttemptFiles files_;
  AttemptRecord record_;
  EventRecorder recorder_;
  std::unique_ptr<Cgroup> cgroup_;
  UniqueFd signals_;
  UniqueFd socket_;
  UniqueFd log_;
  ProcessIdentity trainer_;
  ExitRecord exit_;
  Steady::time_point stop_begin_{};
  Steady::time_point stop_deadline_{};
  bool term_sent_ = false;
  std::optional<Steady::time_point> daemon_away_since_;
  std::string stop_text_;
  Steady::time_point folder_looked_at_{};
  int complaints_ = 0;
};

Supervisor::Supervisor(AttemptFiles files, AttemptRecord record)
    : files_(std::move(files)),
      record_(std::move(record)),
      recorder_(files_, [this](const std::string& line) { complain(line); }),
      log_(::open(files_.log().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!log_) throw std::system_error(errno, std::generic_category(), "cannot open " + files_.log().string());
}

// The person who reads the attempt's log is the one who needs to know.
void Supervisor::complain(const std::string& line) {
  if (++complaints_ > kMaxComplaints) return;
  const std::string text = "coat-worker: " + line + "\n";
  (void)!::write(log_.get(), text.data(), text.size());
}

void Supervisor::block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw std::system_error(errno, std::generic_category(), "cannot make a signalfd");
}

void Supervisor::start_trainer() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make the event socket");
  }
  socket_ = UniqueFd(ends[0]);
  const UniqueFd trainer_end(ends[1]);
  cgroup_ = Cgroup::create("coat-" + files_.folder.filename().string());
  SpawnOptions options;
  options.arguments = record_.trainer;
  options.stdout_fd = log_.get();
  options.stderr_fd = log_.get();
  options.inherited_fd = trainer_end.get();
  options.parent_death_signal = SIGTERM;
  options.cgroup_procs_fd = cgroup_ ? cgroup_->procs_fd() : -1;
  const pid_t pid = spawn(options);
  const auto entry = process_entry(pid);  // unreaped, so it is there
  if (entry) trainer_ = entry->identity;
  const auto self = process_entry(::getpid());
  replace_file(files_.supervisor(),
               to_json(SupervisorRecord{self ? self->identity : ProcessIdentity{}, trainer_, boot_id(),
                                        cgroup_ ? cgroup_->path().string() : ""}));
}

int Supervisor::run() {
  block_signals();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  read_stop_file();
  if (!exit_.stop) {
    try {
      start_trainer();
      loop();
    } catch (const std::system_error& error) {
      if (trainer_.pid == 0) exit_.launch_error = error.what();
      complain(error.what());
    }
  }
  end_trainer_tree();
  if (socket_) read_events();
  recorder_.sync();
  ::fsync(log_.get());
  return write_exit_record() ? 0 : 1;
}

void Supervisor::loop() {
  while (!trainer_ended()) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    // A trainer that closed its socket keeps it readable for ever: then only signals are waited for.
    const nfds_t count = socket_ ? 2 : 1;
    const auto timeout = exit_.stop ? kStoppingTick : kTick;
    if (::poll(fds, count, static_cast<int>(timeout.count())) < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "cannot poll");
    }
    read_signals();
    if (socket_) read_events();
    recorder_.flush(false);
    if (Steady::now() - folder_looked_at_ >= timeout) {
      folder_looked_at_ = Steady::now();
      read_stop_file();
      watch_daemon();
    }
    advance_stop();
    if (exit_.stop && Steady::now() >= stop_deadline_) return;
  }
}

void Supervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) reap_strays();
    if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
      request_stop(
          {record_.stop_grace_seconds, false, false, "the supervisor of the attempt was asked to end"});
    }
  }
}

void Supervisor::read_events() {
  std::string buffer(1 << 16, '\0');
  while (true) {
    const ssize_t n = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      recorder_.on_bytes(buffer.substr(0, static_cast<std::size_t>(n)));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) socket_.reset();
    return;
  }
}

void Supervisor::read_stop_file() {
  try {
    auto text = read_file(files_.stop());
    if (!text || *text == stop_text_) return;
    stop_text_ = std::move(*text);
    request_stop(parse_stop_request(stop_text_));
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

void Supervisor::request_stop(const StopRequest& request) {
  const auto now = Steady::now();
  const auto deadline = now + (request.fence ? Steady::duration::zero() : to_duration(request.grace_seconds));
  if (!exit_.stop) {
    exit_.stop = request;
    stop_begin_ = now;
    stop_deadline_ = deadline;
    if (socket_ && !request.fence) {
      const std::string line = protocol::to_line(protocol::Command(protocol::StopAfterCheckpoint{})) + "\n";
      (void)!::send(socket_.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    return;
  }
  exit_.stop->user_cancel = exit_.stop->user_cancel || request.user_cancel;
  exit_.stop->fence = exit_.stop->fence || request.fence;
  stop_deadline_ = std::min(stop_deadline_, deadline);
}

void Supervisor::advance_stop() {
  if (!exit_.stop || term_sent_) return;
  const auto term_at =
      stop_begin_ + std::chrono::duration_cast<Steady::duration>((stop_deadline_ - stop_begin_) * kTermShare);
  if (Steady::now() < term_at) return;
  // The trainer alone: its own children are killed with the rest, not in the middle of a checkpoint.
  ::kill(trainer_.pid, SIGTERM);
  term_sent_ = true;
}

void Supervisor::watch_daemon() {
  if (record_.daemon_lock.empty() || is_locked(record_.daemon_lock)) {
    daemon_away_since_.reset();
    return;
  }
  const auto now = Steady::now();
  if (!daemon_away_since_) daemon_away_since_ = now;
  if (exit_.stop || now - *daemon_away_since_ < to_duration(record_.orphan_grace_seconds)) return;
  request_stop({record_.stop_grace_seconds, false, false,
                "the worker daemon was away for longer than its orphan grace"});
}

// The trainer stays a zombie until its session is killed, so that its id cannot become a stranger's.
bool Supervisor::trainer_ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(trainer_.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

void Supervisor::end_trainer_tree() {
  if (trainer_.pid == 0) return;
  exit_.killed_by_service = !trainer_ended();
  if (cgroup_) cgroup_->kill();
  exit_.survivors = kill_tree(trainer_, true, kKillLimit);
  ChildStatus status;
  if (!try_reap(trainer_.pid, &status)) return;  // unkillable: among the survivors
  exit_.exit_code = status.exit_code;
  exit_.signal = status.signal;
  if (status.signal == 0) exit_.killed_by_service = false;
  if (term_sent_ && status.signal == SIGTERM) exit_.killed_by_service = true;
}

bool Supervisor::write_exit_record() {
  const auto patience = Steady::now() + kExitRecordPatience;
  while (true) {
    exit_.end_time =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    try {
      write_durably(files_.exit(), to_json(exit_));
      return true;
    } catch (const std::system_error& error) {
      if (Steady::now() >= patience) {
        std::fprintf(stderr, "coat-worker supervise: %s\n", error.what());
        return false;
      }
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }
}

}  // namespace

int supervise(const std::filesystem::path& folder) {
  const AttemptFiles files(folder);
  try {
    const auto lock = FileLock::try_acquire(files.lock());
    if (!lock) {
      std::fprintf(stderr, "coat-worker supervise: %s has a supervisor already (process %s)\n",
                   folder.c_str(), lock_owner(files.lock()).c_str());
      return 1;
    }
    if (read_file(files.exit())) return 0;  // the daemon gave it up before we came to life
    const auto record = read_file(files.attempt());
    if (!record) throw std::runtime_error("no attempt.json in " + folder.string());
    return Supervisor(files, parse_attempt_record(*record)).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coat-worker supervise: %s\n", error.what());
    return 1;
  }
}

}  // namespace coat::agent
