// Cancelling in every state that a job passes through.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

constexpr std::int64_t kManySteps = 1000000;  // never reached

v1::JobSpec endless_spec(const Service& service) {
  v1::JobSpec spec;
  spec.set_name("endless");
  spec.mutable_data()->set_path(service.folder() / "text.txt");
  spec.mutable_model()->set_hidden(32);
  spec.mutable_model()->set_intermediate(64);
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_heads(2);
  spec.mutable_training()->set_steps(kManySteps);
  spec.mutable_training()->set_sequence_length(32);
  spec.mutable_training()->set_micro_batch(2);
  return spec;
}

TEST(Cancel, PendingWithoutAWorkerEndsAtOnce) {
  Service service;
  service.start_controller();
  const std::string id = service.submit({});
  EXPECT_EQ(service.job(id).state(), v1::Job::PENDING);
  const Output cancelled = service.cli({"cancel", id});
  EXPECT_EQ(cancelled.exit.code, 0) << cancelled.err;
  EXPECT_EQ(service.job(id).state(), v1::Job::CANCELLED);
  EXPECT_EQ(service.job(id).attempt_count(), 0);
  EXPECT_EQ(service.cli({"wait", id}).exit.code, 3);
}

TEST(Cancel, WhileAWorkerEvaluates) {
  Service service;
  service.start_controller();
  // A trainer that answers no estimate until somebody writes into the pipe.
  const auto gate = service.folder() / "gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const auto trainer = service.folder() / "slow-trainer";
  write_file(trainer, "#!/bin/sh\nread line < '" + gate.string() + "'\nexec '" +
                          program("coat-trainer").string() + "' \"$@\"\n");
  std::filesystem::permissions(trainer, std::filesystem::perms::owner_all);
  service.start_worker({.more = {"--trainer", trainer}});
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::READY));
  const auto submitted = service.client().submit(endless_spec(service), "");
  ASSERT_TRUE(submitted.ok()) << submitted.error().message;
  const std::string id = submitted.value().name().substr(5);
  ASSERT_TRUE(service.reaches(
      id, [](const v1::Job& job) { return job.pending_status().reason() == v1::PendingStatus::EVALUATING; }));
  ASSERT_TRUE(service.client().cancel(id).ok());
  EXPECT_EQ(service.job(id).state(), v1::Job::CANCELLED);
}

// Cancelled as soon as its n-th event is seen: created, evaluated, assigned, running, in whatever order they
// come.
class CancelAfterEvent : public ::testing::TestWithParam<int> {};

TEST_P(CancelAfterEvent, EndsAsCancelledAndLeavesNothing) {
  Service service;
  service.start_controller();
  service.start_worker({});
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::READY));
  const auto submitted = service.client().submit(endless_spec(service), "");
  ASSERT_TRUE(submitted.ok()) << submitted.error().message;
  const std::string id = submitted.value().name().substr(5);
  int seen = 0;
  service.client().watch(id, 0, {}, [&](const v1::WatchJobsResponse& change) {
    seen += change.has_event() ? 1 : 0;
    return seen < GetParam();
  });
  ASSERT_TRUE(service.client().cancel(id).ok());
  ASSERT_TRUE(service.reaches(id, v1::Job::CANCELLED));
  EXPECT_TRUE(eventually([&] { return service.trainers("w1").empty(); }));
  // The device is free again.
  const std::string next = service.submit({.name = "next", .steps = 2});
  EXPECT_TRUE(service.reaches(next, v1::Job::SUCCEEDED));
  EXPECT_EQ(service.job(id).state(), v1::Job::CANCELLED);
}

INSTANTIATE_TEST_SUITE_P(EveryEvent, CancelAfterEvent, ::testing::Values(1, 2, 3, 4));

TEST(Cancel, RunningSavesACheckpointAndEnds) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = kManySteps, .checkpoint_interval = 0});
  ASSERT_TRUE(service.reaches(id, [](const v1::Job& job) { return job.progress().step() > 0; }));
  const Output cancelled = service.cli({"cancel", id});
  EXPECT_EQ(cancelled.exit.code, 0) << cancelled.err;
  ASSERT_TRUE(service.reaches(id, v1::Job::CANCELLED));
  EXPECT_EQ(service.attempt(id, 1).state(), v1::Attempt::CANCELLED);
  EXPECT_GT(service.job(id).progress().checkpoint_step(), 0);
  EXPECT_EQ(service.cli({"wait", id}).exit.code, 3);
}

TEST(Cancel, ATrainerThatDoesNotAnswerIsKilledAtTheEndOfItsGrace) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = kManySteps, .stop_grace_seconds = 2});
  ASSERT_TRUE(service.reaches(id, [](const v1::Job& job) { return job.progress().step() > 0; }));
  const std::vector<pid_t> trainers = service.trainers("w1");
  ASSERT_EQ(trainers.size(), 1U);
  ::kill(trainers[0], SIGSTOP);
  ASSERT_TRUE(service.client().cancel(id).ok());
  EXPECT_EQ(service.job(id).state(), v1::Job::CANCELLING);
  // Once more while it is stopping: the same wish, no other effect.
  const auto again = service.client().cancel(id);
  ASSERT_TRUE(again.ok()) << again.error().message;
  ASSERT_TRUE(service.reaches(id, v1::Job::CANCELLED));
  EXPECT_TRUE(service.trainers("w1").empty());
}

TEST(Cancel, WaitingBehindAnotherJob) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string first = service.submit({.name = "first", .steps = kManySteps});
  ASSERT_TRUE(service.reaches(first, v1::Job::RUNNING));
  const std::string second = service.submit({.name = "second"});
  ASSERT_TRUE(service.reaches(second, [](const v1::Job& job) {
    return job.pending_status().reason() == v1::PendingStatus::DEVICES_BUSY;
  }));
  ASSERT_TRUE(service.client().cancel(second).ok());
  EXPECT_EQ(service.job(second).state(), v1::Job::CANCELLED);
  EXPECT_EQ(service.job(first).state(), v1::Job::RUNNING);
  ASSERT_TRUE(service.client().cancel(first).ok());
  EXPECT_TRUE(service.reaches(first, v1::Job::CANCELLED));
}

TEST(Cancel, AnEndedJobStaysAsItIs) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = 2});
  ASSERT_TRUE(service.reaches(id, v1::Job::SUCCEEDED));
  const v1::Job before = service.job(id);
  const auto answer = service.client().cancel(id);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer.value().state(), v1::Job::SUCCEEDED);
  EXPECT_EQ(service.job(id).last_sequence(), before.last_sequence());
}

TEST(Cancel, AWishOutlivesTheController) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = kManySteps, .stop_grace_seconds = 3});
  ASSERT_TRUE(service.reaches(id, [](const v1::Job& job) { return job.progress().step() > 0; }));
  service.worker("w1").signal(SIGSTOP);  // so that the wish cannot be carried out before the kill
  ASSERT_TRUE(service.client().cancel(id).ok());
  service.controller().kill_now();
  service.start_controller();
  service.worker("w1").signal(SIGCONT);
  EXPECT_TRUE(service.reaches(id, v1::Job::CANCELLED));
}

}  // namespace
}  // namespace coat::testing
