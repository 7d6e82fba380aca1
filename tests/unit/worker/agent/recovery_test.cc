// The daemon dies and comes back: nothing of an attempt is lost.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/agent/daemon_test_fixture.h"
#include "worker/agent/attempt_record.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/process.h"

namespace coat::agent::testing {
namespace {

using ::testing::HasSubstr;

class RecoveryTest : public DaemonTest {};

TEST_F(RecoveryTest, AKilledDaemonLosesNothingOfARunningJob) {
  start_program();
  run(kAttempt, 5,
      {{"log_lines", "5000"},
       {"steps", "300"},
       {"wait_for", scratch_ / "go"},
       {"exit", "72"},
       {"failure", "NaN"}});
  const std::vector<pid_t> trainers = noted_pids(pids());
  kill_program();
  EXPECT_FALSE(none_alive(trainers));
  start_program();
  EXPECT_EQ(controller_.registers().back().incarnation(), 2);
  ASSERT_EQ(controller_.registers().back().attempts_size(), 1);
  EXPECT_EQ(controller_.registers().back().attempts(0).state(), v1::Attempt::RUNNING);
  spit(scratch_ / "go", "");
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(noted_pids(pids()), trainers) << "the same trainer";
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::NON_FINITE_LOSS);
  EXPECT_EQ(report.exit().message(), "NaN");
  EXPECT_EQ(report.progress().step(), 300);
  const std::string log = controller_.bytes(kAttempt, 5, v1::StreamChunk::LOG);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 5000);
  const std::string metrics = controller_.bytes(kAttempt, 5, v1::StreamChunk::METRICS);
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 300);
}

TEST_F(RecoveryTest, AJobThatEndsWhileTheDaemonIsAwayIsReported) {
  start_program();
  run(kAttempt, 5, {{"steps", "3"}, {"wait_for", scratch_ / "go"}});
  kill_program();
  spit(scratch_ / "go", "");
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder("a-x7k2p.1.5") / "exit.json"); }));
  start_program();
  EXPECT_EQ(end(kAttempt, 5).state(), v1::Attempt::SUCCEEDED);
}

TEST_F(RecoveryTest, AnAdoptedJobCanBeStoppedAndFenced) {
  start_program();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  run("jobs/b-x7k2p/attempts/1", 6, {{"until_stopped", "1"}, {"ignore_term", "1"}, {"double_fork", "1"}}, 1);
  kill_program();
  start_program();
  controller_.stop_attempt(kAttempt, 5, 60, true);
  controller_.fence("jobs/b-x7k2p/attempts/1", 6);
  EXPECT_EQ(end(kAttempt, 5).state(), v1::Attempt::CANCELLED);
  EXPECT_TRUE(eventually([this] { return none_alive(noted_pids(pids())); }));
  EXPECT_FALSE(controller_.ended("jobs/b-x7k2p/attempts/1", 6));
}

TEST_F(RecoveryTest, ADaemonThatLeavesLetsItsTrainersRun) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  daemon_.reset();
  EXPECT_FALSE(none_alive(noted_pids(pids())));
  start_daemon();
  controller_.stop_attempt(kAttempt, 5, 60, true);
  EXPECT_EQ(end(kAttempt, 5).state(), v1::Attempt::CANCELLED);
}

TEST_F(RecoveryTest, AKilledSupervisorEndsItsAttemptAsKilled) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}, {"double_fork", "1"}});
  const auto supervisor =
      parse_supervisor_record(read_file(folder("a-x7k2p.1.5") / "supervisor.json").value());
  ::kill(supervisor.supervisor.pid, SIGKILL);
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(report.state(), v1::Attempt::FAILED);
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::KILLED);
  EXPECT_THAT(report.exit().message(), HasSubstr("supervisor"));
  EXPECT_TRUE(none_alive(noted_pids(pids())));
}

TEST_F(RecoveryTest, AttemptsWhoseStartWasCutShortAreReported) {
  const AttemptFiles files(folder("a-x7k2p.1.5"));
  std::filesystem::create_directories(files.folder);
  AttemptRecord record;
  record.attempt = kAttempt;
  record.epoch = 5;
  record.devices = {0};
  record.trainer = {"/bin/true"};
  write_durably(files.attempt(), to_json(record));
  std::filesystem::create_directories(folder("b-x7k2p.1.6"));  // not even attempt.json
  start_daemon();
  EXPECT_EQ(end(kAttempt, 5).exit().reason(), v1::ExitStatus::KILLED);
}

TEST_F(RecoveryTest, AHungSupervisorIsReplacedByTheDaemon) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}, {"ignore_term", "1"}});
  const auto processes =
      parse_supervisor_record(read_file(folder("a-x7k2p.1.5") / "supervisor.json").value());
  ::kill(processes.supervisor.pid, SIGSTOP);
  controller_.fence(kAttempt, 5);
  EXPECT_TRUE(eventually([this] { return none_alive(noted_pids(pids())); }));
}

TEST_F(RecoveryTest, TheProgramDrainsOnSigterm) {
  start_program();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  ::kill(program_, SIGTERM);
  EXPECT_EQ(reap(std::exchange(program_, 0)).exit_code, 0);
  EXPECT_EQ(controller_.latest(kAttempt, 5)->exit().reason(), v1::ExitStatus::STOPPED);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "state/endpoints.json"));
}

}  // namespace
}  // namespace coat::agent::testing
