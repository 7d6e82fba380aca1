// The supervisor as a process of its own over a trainer of ours that does as it is told.
#include "worker/agent/supervisor.h"

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/worker/agent/agent_test_support.h"
#include "worker/agent/attempt_record.h"
#include "worker/agent/cgroup.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/event_reader.h"
#include "worker/agent/file_lock.h"
#include "worker/agent/process.h"

namespace coat::agent {
namespace {

using testing::binary;
using testing::eventually;
using testing::none_alive;
using testing::noted_pids;
using testing::ScratchFolder;
using testing::slurp;

using Labels = std::map<std::string, std::string>;

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() : files_(scratch_.path()), daemon_(FileLock::try_acquire(scratch_ / "daemon")) {
    record_.attempt = "jobs/a/attempts/1";
    record_.daemon_lock = (scratch_ / "daemon").string();
    record_.trainer = {binary("coat-fake-trainer").string(), "--spec", files_.spec().string(), "--event-fd",
                       "3"};
  }
  ~SupervisorTest() override {
    if (pid_ != 0) {
      ::kill(pid_, SIGKILL);
      reap(pid_);
    }
    for (const pid_t pid : noted_pids(scratch_ / "pids")) ::kill(pid, SIGKILL);
    // A supervisor that was killed leaves it to the daemon, which there is none of here.
    if (const auto text = read_file(files_.supervisor())) end_cgroup(parse_supervisor_record(*text).cgroup);
  }

  void start(Labels labels) {
    labels["pids"] = (scratch_ / "pids").string();
    write_durably(files_.spec(), nlohmann::json{{"labels", labels}}.dump());
    write_durably(files_.attempt(), to_json(record_));
    pid_ = spawn(
        {.arguments = {binary("coat-worker").string(), "supervise", "--dir", scratch_.path().string()}});
  }
  void stop(const StopRequest& request) { write_durably(files_.stop(), to_json(request)); }
  ExitRecord wait() {
    EXPECT_EQ(reap(std::exchange(pid_, 0)).exit_code, 0);
    const auto text = read_file(files_.exit());
    EXPECT_TRUE(text);
    return text ? parse_exit_record(*text) : ExitRecord{};
  }
  ExitRecord run(Labels labels) {
    start(std::move(labels));
    return wait();
  }
  std::vector<pid_t> pids() { return noted_pids(scratch_ / "pids"); }
  TrainingState training() {
    EventReader reader(files_);
    reader.poll();
    return reader.state();
  }
  // The trainer has sent its first events and printed its lines.
  bool started() {
    return eventually([this] { return training().started.has_value(); });
  }

  ScratchFolder scratch_;
  AttemptFiles files_;
  AttemptRecord record_;
  std::optional<FileLock> daemon_;
  pid_t pid_ = 0;
};

TEST_F(SupervisorTest, EveryExitCodeIsRecorded) {
  for (const int code : {0, 1, 64, 65, 66, 70, 71, 72, 73, 74, 85, 86, 255}) {
    std::filesystem::remove(files_.exit());
    const ExitRecord exit = run({{"exit", std::to_string(code)}});
    EXPECT_EQ(exit.exit_code, code);
    EXPECT_EQ(exit.signal, 0);
    EXPECT_FALSE(exit.killed_by_service);
    EXPECT_FALSE(exit.stop);
    EXPECT_TRUE(exit.survivors.empty());
  }
}

TEST_F(SupervisorTest, ASignalOfAStrangerIsTold) {
  const ExitRecord exit = run({{"signal", std::to_string(SIGUSR2)}});
  EXPECT_EQ(exit.exit_code, -1);
  EXPECT_EQ(exit.signal, SIGUSR2);
  EXPECT_FALSE(exit.killed_by_service);
}

TEST_F(SupervisorTest, EventsBecomeFiles) {
  EXPECT_EQ(run({{"steps", "500"}, {"log_lines", "3"}, {"exit", "65"}, {"failure", "no data"}}).exit_code,
            65);
  const TrainingState state = training();
  ASSERT_TRUE(state.started && state.step && state.failure);
  EXPECT_EQ(state.started->total_steps, 100);
  EXPECT_EQ(state.step->step, 500);
  ASSERT_EQ(state.step->quantization.size(), 1U)
      << "the last measured errors stay though later steps have none";
  EXPECT_EQ(state.failure->message, "no data");
  EXPECT_EQ(slurp(files_.log()), "line 0\nline 1\nline 2\n");
  std::istringstream metrics(slurp(files_.metrics()));
  int lines = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto step =
        nlohmann::json::parse(line).at("step");  // protobuf's JSON may write 64 bits as a string
    ++lines;
    EXPECT_EQ(step.is_string() ? std::stoi(step.get<std::string>()) : step.get<int>(), lines);
  }
  EXPECT_EQ(lines, 500);
}

TEST_F(SupervisorTest, AStopAsksForACheckpointFirst) {
  start({{"until_stopped", "1"}, {"ignore_term", "1"}});
  ASSERT_TRUE(started());
  stop({60, true, false, "the user cancelled the job"});
  const ExitRecord exit = wait();
  EXPECT_EQ(exit.exit_code, 85);
  ASSERT_TRUE(exit.stop);
  EXPECT_TRUE(exit.stop->user_cancel);
  EXPECT_EQ(training().checkpoint->step, 7);
}

TEST_F(SupervisorTest, ATrainerThatDoesNotListenGetsSigterm) {
  start({{"until_stopped", "1"}, {"ignore_stop", "1"}});
  ASSERT_TRUE(started());
  stop({2, false, false, "asked"});
  const ExitRecord exit = wait();
  EXPECT_EQ(exit.exit_code, 85);
  EXPECT_FALSE(exit.killed_by_service);
}

TEST_F(SupervisorTest, NothingSurvivesTheGrace) {
  start({{"until_stopped", "1"}, {"ignore_stop", "1"}, {"ignore_term", "1"}, {"double_fork", "1"}});
  ASSERT_TRUE(started());
  ASSERT_EQ(pids().size(), 2U);
  const auto begin = std::chrono::steady_clock::now();
  stop({0.5, false, false, "asked"});
  const ExitRecord exit = wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500) + kKillLimit);
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_TRUE(exit.killed_by_service);
  EXPECT_TRUE(exit.survivors.empty());
  EXPECT_TRUE(none_alive(pids()));
}

TEST_F(SupervisorTest, WhatATrainerLeavesBehindIsKilled) {
  EXPECT_EQ(run({{"double_fork", "1"}}).exit_code, 0);
  EXPECT_EQ(pids().size(), 2U);
  EXPECT_TRUE(none_alive(pids()));
}

TEST_F(SupervisorTest, AFenceKillsAtOnce) {
  start({{"until_stopped", "1"}, {"ignore_term", "1"}});
  ASSERT_TRUE(started());
  stop({1000, false, false, "asked"});
  stop({1000, false, true, "fenced"});
  const ExitRecord exit = wait();
  EXPECT_TRUE(exit.exit_code == 85 || exit.signal == SIGKILL);
  EXPECT_TRUE(none_alive(pids()));
}

TEST_F(SupervisorTest, AShorterGraceHurriesAStop) {
  start({{"until_stopped", "1"}, {"ignore_stop", "1"}, {"ignore_term", "1"}});
  ASSERT_TRUE(started());
  stop({100000, false, false, "asked"});
  stop({0.1, false, false, "hurry"});
  EXPECT_EQ(wait().signal, SIGKILL);
}

TEST_F(SupervisorTest, AStopBeforeTheStartStartsNothing) {
  stop({10, true, false, "the user cancelled the job"});
  const ExitRecord exit = run({});
  EXPECT_EQ(exit.exit_code, -1);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_TRUE(exit.stop);
  EXPECT_TRUE(pids().empty());
}

TEST_F(SupervisorTest, ATrainerThatCannotRunIsALaunchFailure) {
  record_.trainer[0] = "/nowhere/coat-trainer";
  const ExitRecord exit = run({});
  EXPECT_THAT(exit.launch_error, ::testing::HasSubstr("/nowhere/coat-trainer"));
}

TEST_F(SupervisorTest, WhenTheDaemonStaysAwayTheTrainerSavesAndStops) {
  record_.orphan_grace_seconds = 0.3;
  start({{"until_stopped", "1"}});
  ASSERT_TRUE(started());
  EXPECT_FALSE(training().checkpoint) << "the daemon is there";
  daemon_.reset();
  const ExitRecord exit = wait();
  EXPECT_EQ(exit.exit_code, 85);
  ASSERT_TRUE(exit.stop);
  EXPECT_THAT(exit.stop->reason, ::testing::HasSubstr("away"));
}

TEST_F(SupervisorTest, ADeadSupervisorTakesItsTrainerAlongWithACheckpoint) {
  start({{"until_stopped", "1"}});
  ASSERT_TRUE(started());
  ::kill(pid_, SIGKILL);
  EXPECT_EQ(reap(std::exchange(pid_, 0)).signal, SIGKILL);
  EXPECT_TRUE(eventually([this] { return none_alive(pids()); }));
  EXPECT_FALSE(is_locked(files_.lock()));
}

TEST_F(SupervisorTest, OneSupervisorAnAttempt) {
  const auto held = FileLock::try_acquire(files_.lock());
  start({});
  EXPECT_EQ(reap(std::exchange(pid_, 0)).exit_code, 1);
  EXPECT_TRUE(pids().empty());
}

TEST_F(SupervisorTest, AnAttemptThatWasGivenUpDoesNotStart) {
  write_durably(files_.exit(), to_json(ExitRecord{}));
  start({});
  EXPECT_EQ(reap(std::exchange(pid_, 0)).exit_code, 0);
  EXPECT_TRUE(pids().empty());
}

}  // namespace
}  // namespace coat::agent
