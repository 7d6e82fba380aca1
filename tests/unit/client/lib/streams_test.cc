#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/lib/job_client.h"
#include "tests/support/client/fake_job_service.h"

namespace coat::client {
namespace {

using ::testing::ElementsAre;
using testing::failed_job;
using testing::FakeJobService;
using testing::running_job;
using ::testing::SizeIs;
using testing::succeeded_job;

ClientOptions options_of(const FakeJobService& service) {
  ClientOptions options;
  options.address = service.address();
  options.reconnect = {.initial = std::chrono::milliseconds(1), .maximum = std::chrono::milliseconds(5)};
  return options;
}

TEST(Watch, TellsEachEventOnceAndEndsWithTheTerminalOne) {
  FakeJobService service;
  service.put(running_job("other", 1));
  for (const std::int64_t step : {1, 2, 3}) service.put(running_job("j", step));
  service.put(succeeded_job("j"));
  JobClient client(options_of(service));
  std::vector<std::int64_t> sequences;
  EXPECT_FALSE(client.watch("j", 2, {}, [&](const v1::WatchJobsResponse& response) {
    sequences.push_back(response.event().sequence());
    return true;
  }));
  EXPECT_THAT(sequences, ElementsAre(3, 4, 5));
}

// A replay may carry the ended job with every event; only the last event ends the watch.
TEST(Watch, TellsAllEventsOfAJobThatHasEnded) {
  FakeJobService service;
  service.send_current_jobs();
  for (const std::int64_t step : {1, 2, 3}) service.put(running_job("j", step));
  service.put(succeeded_job("j"));
  service.break_streams(2);
  JobClient client(options_of(service));
  std::vector<std::int64_t> sequences;
  EXPECT_FALSE(client.watch("j", 0, {}, [&](const v1::WatchJobsResponse& response) {
    sequences.push_back(response.event().sequence());
    return true;
  }));
  EXPECT_THAT(sequences, ElementsAre(1, 2, 3, 4));
}

TEST(Watch, GoesOnAfterEachInterruptionWithoutGapOrRepetition) {
  FakeJobService service;
  for (std::int64_t step = 1; step <= 20; ++step) service.put(running_job("j", step));
  service.put(succeeded_job("j"));
  service.break_streams(3, 5);
  JobClient client(options_of(service));
  std::vector<std::int64_t> sequences;
  int interruptions = 0;
  StreamOptions options;
  options.on_interruption = [&](const ServiceError& error, int failed) {
    EXPECT_EQ(failed, 1);
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
    ++interruptions;
  };
  EXPECT_FALSE(client.watch("j", 0, options, [&](const v1::WatchJobsResponse& response) {
    sequences.push_back(response.event().sequence());
    return true;
  }));
  ASSERT_THAT(sequences, SizeIs(21));
  for (std::size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(sequences[i], static_cast<std::int64_t>(i) + 1);
  EXPECT_EQ(interruptions, 5);
  EXPECT_THAT(service.stream_starts(), ElementsAre(0, 3, 6, 9, 12, 15));
}

TEST(Watch, GivesUpWhenPatienceEnds) {
  FakeJobService service;
  service.put(running_job("j", 1));
  ClientOptions options = options_of(service);
  options.patience = std::chrono::milliseconds(50);
  JobClient client(options);
  ASSERT_TRUE(client.get("j").ok());
  service.fail_next("WatchJobs", unavailable("STARTING", "not yet"), 10000);
  const auto error = client.watch("j", 0, {}, [](const v1::WatchJobsResponse&) { return true; });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->reason, "STARTING");
  EXPECT_GT(service.calls("WatchJobs"), 1);
}

TEST(Watch, AnErrorThatAnotherTryCannotMendEndsIt) {
  FakeJobService service;
  service.put(running_job("j", 1));
  service.fail_next("WatchJobs", not_found("job", "jobs/j"));
  JobClient client(options_of(service));
  const auto error = client.watch("j", 0, {}, [](const v1::WatchJobsResponse&) { return true; });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->reason, "JOB_NOT_FOUND");
  EXPECT_EQ(service.calls("WatchJobs"), 1);
}

TEST(Watch, ForgottenEventsAreReplacedByTheJobAsItIs) {
  FakeJobService service;
  for (std::int64_t step = 1; step <= 3; ++step) service.put(running_job("j", step));
  service.forget_events_before(3);
  JobClient client(options_of(service));
  std::vector<std::int64_t> steps;
  std::vector<bool> events;
  EXPECT_FALSE(client.watch("j", 0, {}, [&](const v1::WatchJobsResponse& response) {
    steps.push_back(response.job().progress().step());
    events.push_back(response.has_event());
    if (steps.size() == 1) service.put(succeeded_job("j"));
    return true;
  }));
  EXPECT_THAT(steps, ElementsAre(3, 100));
  EXPECT_THAT(events, ElementsAre(false, true));
}

TEST(Watch, ProgressArrivesWithoutAnEvent) {
  FakeJobService service;
  service.put(running_job("j", 0));
  JobClient client(options_of(service));
  std::vector<std::int64_t> steps;
  EXPECT_FALSE(client.watch("j", 0, {}, [&](const v1::WatchJobsResponse& response) {
    steps.push_back(response.job().progress().step());
    if (steps.back() == 0) service.put_progress(running_job("j", 50));
    if (steps.back() == 50) service.put(succeeded_job("j"));
    return true;
  }));
  EXPECT_THAT(steps, ElementsAre(0, 50, 100));
}

TEST(Watch, TheCallerEndsItInThreeWays) {
  FakeJobService service;
  service.put(running_job("j", 1));
  JobClient client(options_of(service));
  // By its answer.
  EXPECT_FALSE(client.watch("j", 0, {}, [](const v1::WatchJobsResponse&) { return false; }));
  // By its token, from another thread, while nothing comes.
  std::stop_source stop;
  StreamOptions options;
  options.stop = stop.get_token();
  std::promise<void> begun;
  std::thread stopper([&] {
    begun.get_future().wait();
    stop.request_stop();
  });
  const auto stopped = client.watch("j", 0, options, [&](const v1::WatchJobsResponse&) {
    begun.set_value();
    return true;
  });
  stopper.join();
  ASSERT_TRUE(stopped.has_value());
  EXPECT_EQ(stopped->reason, kStopped);
  // By its deadline.
  StreamOptions limited;
  limited.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  const auto late = client.watch("j", 0, limited, [](const v1::WatchJobsResponse&) { return true; });
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->reason, kTimedOut);
}

TEST(Wait, AnswersWithTheJobAsItEnded) {
  FakeJobService service;
  service.put(running_job("j", 1));
  JobClient client(options_of(service));
  std::thread trainer([&] {
    while (service.calls("WatchJobs") == 0) std::this_thread::yield();
    service.put(failed_job("j"));
  });
  const auto job = client.wait("j", {});
  trainer.join();
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job.value().state(), v1::Job::FAILED);
  EXPECT_EQ(job.value().exit().field(), "data.path");
  // One that has ended already needs no watch.
  EXPECT_EQ(client.wait("j", {}).value().state(), v1::Job::FAILED);
  EXPECT_EQ(service.calls("WatchJobs"), 1);
}

TEST(Wait, OutlivesAServiceThatIsAwayForAWhile) {
  FakeJobService service;
  service.put(running_job("j", 1));
  service.break_streams(0, 20);
  JobClient client(options_of(service));
  std::thread trainer([&] {
    while (service.calls("WatchJobs") < 20) std::this_thread::yield();
    service.put(succeeded_job("j"));
  });
  EXPECT_EQ(client.wait("j", {}).value().state(), v1::Job::SUCCEEDED);
  trainer.join();
}

constexpr const char* kAttempt = "jobs/j/attempts/1";

TEST(Logs, ArriveToTheLastByteOverInterruptions) {
  FakeJobService service;
  std::string log;
  for (int i = 0; i < 40; ++i) log += "line " + std::to_string(i) + "\n";
  service.append_log(kAttempt, log, true);
  service.append_log("jobs/j/attempts/2", "", true);
  service.break_streams(7, 3);
  JobClient client(options_of(service));
  std::string got;
  const auto end = client.stream_logs(kAttempt, 0, true, {}, [&](const std::string& data) {
    got += data;
    return true;
  });
  EXPECT_EQ(end.value(), static_cast<std::int64_t>(log.size()));
  EXPECT_EQ(got, log);
  EXPECT_THAT(service.stream_starts(), ElementsAre(0, 28, 56, 84));
  EXPECT_EQ(
      client.stream_logs("jobs/j/attempts/2", 0, true, {}, [](const std::string&) { return true; }).value(),
      0);
}

TEST(Logs, WithoutFollowEndWhereTheLogEndsNow) {
  FakeJobService service;
  service.append_log(kAttempt, "0123456789", false);
  JobClient client(options_of(service));
  std::string got;
  const auto end = client.stream_logs(kAttempt, 3, false, {}, [&](const std::string& data) {
    got += data;
    return true;
  });
  EXPECT_EQ(end.value(), 10);
  EXPECT_EQ(got, "3456789");
  EXPECT_EQ(client.stream_logs("jobs/j/attempts/9", 0, false, {}, [](const std::string&) { return true; })
                .error()
                .code,
            grpc::StatusCode::NOT_FOUND);
}

TEST(Logs, TheReaderMayHaveEnough) {
  FakeJobService service;
  service.append_log(kAttempt, "0123456789", false);
  JobClient client(options_of(service));
  const auto end = client.stream_logs(kAttempt, 0, true, {}, [](const std::string&) { return false; });
  EXPECT_EQ(end.value(), 4);
}

TEST(MetricsStream, EachStepOnceOverInterruptions) {
  FakeJobService service;
  for (std::int64_t step = 1; step <= 10; ++step) {
    v1::MetricSample sample;
    sample.set_step(step);
    service.append_sample(kAttempt, sample, step == 10);
  }
  service.break_streams(4, 2);
  JobClient client(options_of(service));
  std::vector<std::int64_t> steps;
  EXPECT_FALSE(client.stream_metrics(kAttempt, 1, true, {}, [&](const v1::MetricSample& sample) {
    steps.push_back(sample.step());
    return true;
  }));
  EXPECT_THAT(steps, ElementsAre(2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(service.stream_starts(), ElementsAre(1, 5, 9));
}

}  // namespace
}  // namespace coat::client
