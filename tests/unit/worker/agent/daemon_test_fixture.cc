#include "tests/unit/worker/agent/daemon_test_fixture.h"

#include "proto/common/clock.h"
#include "worker/agent/captured_run.h"
#include "worker/agent/process.h"

namespace coat::agent::testing {

DaemonTest::~DaemonTest() {
  daemon_.reset();
  if (program_ != 0) kill_program();
  // What a failed test leaves: supervisors are killed by the trainers' sessions' end.
  for (const pid_t pid : noted_pids(pids())) ::kill(pid, SIGKILL);
  eventually([this] { return none_alive(noted_pids(pids())); });
}

WorkerOptions DaemonTest::options() const {
  WorkerOptions options;
  options.state_dir = scratch_ / "state";
  options.checkpoint_dir = scratch_ / "checkpoints";
  options.controller = controller_.address();
  options.id = "w1";
  options.trainer = binary("coat-fake-trainer");
  options.cpu_devices = 2;
  options.memory_limit_bytes = 1 << 30;
  options.metrics_listen = "127.0.0.1:0";
  options.supervisor = binary("coat-worker");
  return options;
}

void DaemonTest::start_daemon() {
  const std::size_t before = controller_.registers().size();
  daemon_ = std::make_unique<Daemon>(options(), real_clock());
  ASSERT_TRUE(registered(before));
}

void DaemonTest::start_program() {
  const std::size_t before = controller_.registers().size();
  const WorkerOptions wanted = options();
  program_ = spawn({.arguments = {binary("coat-worker"), "--state-dir", wanted.state_dir, "--checkpoint-dir",
                                  wanted.checkpoint_dir, "--controller", wanted.controller, "--id", wanted.id,
                                  "--trainer", wanted.trainer, "--cpu-devices", "2", "--memory-limit", "1GiB",
                                  "--metrics-listen", wanted.metrics_listen}});
  ASSERT_TRUE(registered(before));
}

void DaemonTest::kill_program() {
  ::kill(program_, SIGKILL);
  reap(std::exchange(program_, 0));
}

bool DaemonTest::registered(std::size_t count) {
  return eventually([&] { return controller_.registers().size() > count; });
}

void DaemonTest::run(const std::string& attempt, std::int64_t epoch,
                     std::map<std::string, std::string> labels, int device) {
  labels["pids"] = pids().string();
  const std::size_t before = noted_pids(pids()).size();
  const std::size_t expected = before + (labels.contains("double_fork") ? 2 : 1);
  controller_.assign(attempt, epoch, labels, device);
  ASSERT_TRUE(eventually([&] { return noted_pids(pids()).size() == expected; }));
  ASSERT_TRUE(eventually([&] { return controller_.latest(attempt, epoch).has_value(); }));
}

v1::AttemptReport DaemonTest::end(const std::string& attempt, std::int64_t epoch) {
  EXPECT_TRUE(eventually([&] { return controller_.ended(attempt, epoch); })) << attempt;
  const v1::AttemptReport report = controller_.latest(attempt, epoch).value_or(v1::AttemptReport{});
  const auto held = [&](v1::StreamChunk::Kind kind) {
    return static_cast<std::int64_t>(controller_.bytes(attempt, epoch, kind).size());
  };
  EXPECT_TRUE(eventually([&] {
    return held(v1::StreamChunk::LOG) == report.log_bytes() &&
           held(v1::StreamChunk::METRICS) == report.metrics_bytes();
  })) << attempt
      << ": " << held(v1::StreamChunk::LOG) << " of " << report.log_bytes() << " log bytes, "
      << held(v1::StreamChunk::METRICS) << " of " << report.metrics_bytes() << " of the metrics";
  return report;
}

std::string DaemonTest::scrape() const {
  const std::string request = "exec 3<>/dev/tcp/127.0.0.1/" + std::to_string(daemon_->metrics_port()) +
                              R"(; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3)";
  return run_captured({"/bin/bash", "-c", request}, std::chrono::seconds(30), [] { return false; }).output;
}

}  // namespace coat::agent::testing
