// The daemon against the contract's rules of the stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "proto/common/clock.h"
#include "tests/unit/worker/agent/daemon_test_fixture.h"

namespace coat::agent::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

TEST_F(DaemonTest, RegistersAndBeats) {
  start_daemon();
  const v1::Register first = controller_.registers().at(0);
  EXPECT_EQ(first.worker_id(), "w1");
  EXPECT_EQ(first.incarnation(), 1);
  // Behind the GPUs of the machine that the test runs on.
  const int devices = first.devices_size();
  ASSERT_GE(devices, 2);
  for (int i = devices - 2; i < devices; ++i) {
    EXPECT_EQ(first.devices(i).kind(), v1::Device::CPU);
    EXPECT_EQ(first.devices(i).memory_bytes(), 1 << 30);
  }
  EXPECT_EQ(first.attempts_size(), 0);
  EXPECT_TRUE(eventually([this] { return controller_.heartbeats().size() >= 3; }));
  EXPECT_EQ(controller_.heartbeats().at(1).sequence(), 2);
  EXPECT_EQ(controller_.heartbeats().at(1).devices_size(), devices);
  const auto endpoints = nlohmann::json::parse(slurp(scratch_ / "state/endpoints.json"));
  EXPECT_EQ(endpoints.at("metrics"), "127.0.0.1:" + std::to_string(daemon_->metrics_port()));
  daemon_.reset();
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "state/endpoints.json"));
  start_daemon();
  EXPECT_EQ(controller_.registers().back().incarnation(), 2);
}

TEST_F(DaemonTest, AJobRunsToItsEnd) {
  start_daemon();
  run(kAttempt, 5, {{"steps", "20"}, {"log_lines", "10"}});
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(report.state(), v1::Attempt::SUCCEEDED);
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::DONE);
  EXPECT_EQ(report.progress().step(), 20);
  EXPECT_EQ(report.progress().total_steps(), 100);
  EXPECT_EQ(report.progress().quantization_size(), 1);
  EXPECT_TRUE(report.has_resume_step());
  EXPECT_EQ(report.resume_step(), 0);
  EXPECT_EQ(report.summary().last_loss(), 1);
  EXPECT_EQ(slurp(report.summary().log_path()), lines(10));
  EXPECT_EQ(controller_.bytes(kAttempt, 5, v1::StreamChunk::LOG), lines(10));
  EXPECT_EQ(controller_.bytes(kAttempt, 5, v1::StreamChunk::METRICS), slurp(report.summary().metrics_path()));
  // Of a trainer that has ended before the daemon looked, the end is all there is to tell.
  EXPECT_THAT(controller_.reports(kAttempt, 5).front().state(),
              ::testing::AnyOf(v1::Attempt::RUNNING, v1::Attempt::SUCCEEDED));
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(folder("a-x7k2p.1.5") / "shipped"); }));
}

TEST_F(DaemonTest, FailuresAreReportedInTheTrainersWords) {
  start_daemon();
  run(kAttempt, 5, {{"exit", "65"}, {"failure", "data.path /x is empty"}});
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(report.state(), v1::Attempt::FAILED);
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::DATA_ERROR);
  EXPECT_EQ(report.exit().message(), "data.path /x is empty");
  EXPECT_EQ(report.exit().field(), "data.path");
}

TEST_F(DaemonTest, ACancelledJobIsCancelledAndNothingSurvives) {
  start_daemon();
  run(kAttempt, 5,
      {{"until_stopped", "1"}, {"ignore_stop", "1"}, {"ignore_term", "1"}, {"double_fork", "1"}});
  const auto begin = std::chrono::steady_clock::now();
  controller_.stop_attempt(kAttempt, 5, 1, true);
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(6));
  EXPECT_EQ(report.state(), v1::Attempt::CANCELLED);
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::CANCELLED);
  EXPECT_TRUE(none_alive(noted_pids(pids())));
  bool stopping = false;
  for (const auto& earlier : controller_.reports(kAttempt, 5))
    stopping |= earlier.state() == v1::Attempt::STOPPING;
  EXPECT_TRUE(stopping);
}

TEST_F(DaemonTest, AStopAsksForACheckpoint) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  controller_.stop_attempt(kAttempt, 5, 60, false);
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(report.state(), v1::Attempt::FAILED);
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::STOPPED);
  EXPECT_EQ(report.progress().checkpoint_step(), 7);
}

TEST_F(DaemonTest, AStaleEpochIsIgnored) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  controller_.stop_attempt(kAttempt, 4, 0, true);
  controller_.fence(kAttempt, 6);
  controller_.assign("jobs/a-x7k2p/attempts/2", 3, {{"pids", pids().string()}}, 1);
  // Messages are taken in order: when the next one has an effect, the stale ones have had theirs.
  run("jobs/b-x7k2p/attempts/1", 7, {}, 1);
  EXPECT_EQ(end("jobs/b-x7k2p/attempts/1", 7).state(), v1::Attempt::SUCCEEDED);
  EXPECT_EQ(noted_pids(pids()).size(), 2U);
  EXPECT_EQ(controller_.latest(kAttempt, 5)->state(), v1::Attempt::RUNNING);
  EXPECT_TRUE(controller_.reports("jobs/a-x7k2p/attempts/2", 3).empty());
  controller_.stop_attempt(kAttempt, 5, 60, true);
  EXPECT_EQ(end(kAttempt, 5).state(), v1::Attempt::CANCELLED);
}

TEST_F(DaemonTest, AFencedAttemptIsKilledAndForgotten) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}, {"ignore_term", "1"}, {"double_fork", "1"}});
  controller_.fence(kAttempt, 5);
  EXPECT_TRUE(eventually([this] { return none_alive(noted_pids(pids())); }));
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(folder("a-x7k2p.1.5") / "shipped"); }));
  EXPECT_FALSE(controller_.ended(kAttempt, 5));
  const std::size_t before = controller_.registers().size();
  controller_.drop();
  ASSERT_TRUE(registered(before));
  EXPECT_EQ(controller_.registers().back().attempts_size(), 0);
}

TEST_F(DaemonTest, ANewerAttemptOfAJobEndsTheOlderFirst) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}, {"ignore_term", "1"}});
  run("jobs/a-x7k2p/attempts/2", 6, {});
  EXPECT_EQ(end("jobs/a-x7k2p/attempts/2", 6).state(), v1::Attempt::SUCCEEDED);
  EXPECT_TRUE(none_alive(noted_pids(pids())));
  EXPECT_FALSE(controller_.ended(kAttempt, 5));
}

TEST_F(DaemonTest, ARepeatedAssignmentStartsNothing) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  const std::size_t before = controller_.reports(kAttempt, 5).size();
  controller_.assign(kAttempt, 5, {{"pids", pids().string()}});
  EXPECT_TRUE(eventually([&] { return controller_.reports(kAttempt, 5).size() > before; }))
      << "it is answered";
  EXPECT_EQ(noted_pids(pids()).size(), 1U);
}

TEST_F(DaemonTest, AnAssignmentThatCannotBeIsALaunchFailure) {
  start_daemon();
  controller_.assign(kAttempt, 5, {}, 9);
  EXPECT_TRUE(eventually([this] { return controller_.ended(kAttempt, 5); }));
  EXPECT_EQ(controller_.latest(kAttempt, 5)->exit().reason(), v1::ExitStatus::LAUNCH_FAILED);
  EXPECT_THAT(controller_.latest(kAttempt, 5)->exit().message(), HasSubstr("device 9"));
  controller_.assign("jobs/../attempts/1", 6, {});
  run("jobs/b-x7k2p/attempts/1", 7, {});
  EXPECT_EQ(end("jobs/b-x7k2p/attempts/1", 7).state(), v1::Attempt::SUCCEEDED);
}

TEST_F(DaemonTest, ALongLogArrivesWholeAcrossReconnects) {
  start_daemon();
  constexpr int kLines = 100000;
  run(kAttempt, 5, {{"log_lines", std::to_string(kLines)}, {"steps", "2000"}});
  for (int i = 0; i < 3; ++i) {
    const std::size_t before = controller_.registers().size();
    controller_.drop();
    ASSERT_TRUE(registered(before));
  }
  const std::size_t before = controller_.registers().size();
  controller_.stop();
  controller_.start();
  ASSERT_TRUE(registered(before));
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(report.state(), v1::Attempt::SUCCEEDED);
  EXPECT_TRUE(controller_.bytes(kAttempt, 5, v1::StreamChunk::LOG) == lines(kLines));
  EXPECT_TRUE(controller_.bytes(kAttempt, 5, v1::StreamChunk::METRICS) ==
              slurp(report.summary().metrics_path()));
}

TEST_F(DaemonTest, AReportIsRepeatedUntilItIsAcknowledged) {
  start_daemon();
  controller_.answer_reports(false);
  run(kAttempt, 5, {});
  end(kAttempt, 5);
  for (int i = 0; i < 2; ++i) {
    const std::size_t before = controller_.registers().size();
    controller_.drop();
    ASSERT_TRUE(registered(before));
    ASSERT_EQ(controller_.registers().back().attempts_size(), 1);
    EXPECT_EQ(controller_.registers().back().attempts(0).state(), v1::Attempt::SUCCEEDED);
    EXPECT_EQ(controller_.registers().back().attempts(0).report_sequence(),
              controller_.latest(kAttempt, 5)->report_sequence());
  }
  EXPECT_FALSE(std::filesystem::exists(folder("a-x7k2p.1.5") / "shipped"));
  controller_.answer_reports(true);
  std::size_t before = controller_.registers().size();
  controller_.drop();
  ASSERT_TRUE(registered(before));
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(folder("a-x7k2p.1.5") / "shipped"); }));
  before = controller_.registers().size();
  controller_.drop();
  ASSERT_TRUE(registered(before));
  EXPECT_EQ(controller_.registers().back().attempts_size(), 0);
}

TEST_F(DaemonTest, TheNewestDeliveredFoldersStay) {
  start_daemon();
  constexpr int kAttempts = 23;
  for (int i = 1; i <= kAttempts; ++i) {
    const std::string attempt = "jobs/a-x7k2p/attempts/" + std::to_string(i);
    run(attempt, i, {});
    end(attempt, i);
    const auto path = folder("a-x7k2p." + std::to_string(i) + "." + std::to_string(i));
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path / "shipped"); }));
  }
  EXPECT_TRUE(eventually([this] { return !std::filesystem::exists(folder("a-x7k2p.3.3")); }));
  EXPECT_TRUE(std::filesystem::exists(folder("a-x7k2p.4.4")));
  EXPECT_TRUE(std::filesystem::exists(folder("a-x7k2p.23.23")));
}

TEST_F(DaemonTest, EstimatesAreAnswered) {
  start_daemon();
  v1::ControllerMessage query;
  query.mutable_estimate()->set_query_id(42);
  query.mutable_estimate()->mutable_spec()->set_name("job");
  ASSERT_TRUE(controller_.send(query));
  ASSERT_TRUE(eventually([this] { return !controller_.estimates().empty(); }));
  EXPECT_EQ(controller_.estimates().at(0).query_id(), 42);
  EXPECT_EQ(controller_.estimates().at(0).estimate().memory().total_bytes(), 1234);
}

TEST_F(DaemonTest, ALiveJobsFiguresAreScraped) {
  start_daemon();
  run(kAttempt, 5, {{"steps", "20"}, {"until_stopped", "1"}});
  EXPECT_TRUE(eventually(
      [this] { return scrape().find("coat_job_step{job=\"a-x7k2p\"} 20\n") != std::string::npos; }));
  EXPECT_THAT(scrape(), HasSubstr("coat_job_memory_bytes{job=\"a-x7k2p\",kind=\"estimated\"} 4321\n"));
  EXPECT_THAT(scrape(), HasSubstr("coat_build_info"));
}

TEST_F(DaemonTest, ShutsDownWithACheckpoint) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}});
  daemon_->begin_shutdown();
  EXPECT_TRUE(eventually([this] { return daemon_->drained(); }));
  const v1::AttemptReport report = end(kAttempt, 5);
  EXPECT_EQ(report.exit().reason(), v1::ExitStatus::STOPPED);
  EXPECT_EQ(report.progress().checkpoint_step(), 7);
  controller_.assign("jobs/b-x7k2p/attempts/1", 7, {{"pids", pids().string()}});
  EXPECT_EQ(end("jobs/b-x7k2p/attempts/1", 7).exit().reason(), v1::ExitStatus::STOPPED)
      << "nothing new is started";
  EXPECT_EQ(noted_pids(pids()).size(), 1U);
}

TEST_F(DaemonTest, ASecondRequestHurries) {
  start_daemon();
  run(kAttempt, 5, {{"until_stopped", "1"}, {"ignore_stop", "1"}, {"ignore_term", "1"}});
  daemon_->begin_shutdown();
  daemon_->begin_shutdown();
  EXPECT_TRUE(eventually([this] { return daemon_->drained(); }));
  EXPECT_EQ(end(kAttempt, 5).exit().reason(), v1::ExitStatus::STOPPED);
}

TEST_F(DaemonTest, AFolderInUseAndABusyPortAreRefused) {
  start_daemon();
  try {
    Daemon second(options(), real_clock());
    ADD_FAILURE() << "two daemons on one folder";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(::getpid())));
  }
  WorkerOptions other = options();
  other.state_dir = scratch_ / "other";
  other.metrics_listen = "127.0.0.1:" + std::to_string(daemon_->metrics_port());
  try {
    Daemon second(other, real_clock());
    ADD_FAILURE() << "two servers on one port";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--metrics-listen"));
  }
}

}  // namespace
}  // namespace coat::agent::testing
