// A worker goes silent without dying: its job moves, and what the old attempt still says or writes counts no
// more.
#include <signal.h>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

TEST(Fence, ASilentWorkersJobMovesAndItsLateReportIsRefused) {
  Service service;
  const std::string shared = service.folder() / "shared-checkpoints";
  service.start_controller();
  service.start_worker({.id = "w1", .checkpoint_dir = shared});
  const std::string id = service.submit({.steps = 300, .checkpoint_interval = 10});
  ASSERT_TRUE(eventually([&] { return Service::has_checkpoint(shared, id); }));
  // Trainer first: it must not end before the others are silent.
  const std::vector<pid_t> frozen_trainers = service.trainers("w1");
  ASSERT_EQ(frozen_trainers.size(), 1U);
  ::kill(frozen_trainers[0], SIGSTOP);
  ASSERT_TRUE(service.reaches(id, v1::Job::RUNNING));
  const std::vector<pid_t> frozen = processes_of(service.worker_folder("w1"));
  for (const pid_t pid : frozen) ::kill(pid, SIGSTOP);

  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::LOST));
  ASSERT_TRUE(eventually([&] { return service.attempt(id, 1).state() == v1::Attempt::FENCED; }));
  EXPECT_EQ(service.job(id).state(), v1::Job::PENDING);
  service.start_worker({.id = "w2", .checkpoint_dir = shared});
  ASSERT_TRUE(service.reaches(id, [](const v1::Job& job) { return job.attempt_count() == 2; }));
  ASSERT_TRUE(service.reaches(id, v1::Job::SUCCEEDED));
  const v1::Attempt second = service.attempt(id, 2);
  EXPECT_EQ(second.worker(), "workers/w2");
  EXPECT_GE(second.resume_step(), 10);
  EXPECT_GT(second.epoch(), service.attempt(id, 1).epoch());
  EXPECT_EQ(service.job(id).retries_used(), 0);
  const v1::Job before = service.job(id);

  for (const pid_t pid : frozen) ::kill(pid, SIGCONT);
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::READY));
  EXPECT_TRUE(eventually([&] { return service.trainers("w1").empty(); }));
  EXPECT_EQ(service.attempt(id, 1).state(), v1::Attempt::FENCED);
  EXPECT_EQ(service.job(id).SerializeAsString(), before.SerializeAsString());
  // The worker is of use again.
  service.worker("w2").kill_now();
  const std::string next = service.submit({.name = "next", .steps = 5});
  EXPECT_TRUE(service.reaches(next, v1::Job::SUCCEEDED));
}

TEST(Fence, AWorkerThatIsBackInTimeKeepsItsJob) {
  Service service({.lease = "1s", .fence_after = "60s"});
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = 300});
  ASSERT_TRUE(
      eventually([&] { return Service::has_checkpoint(service.worker_folder("w1") / "checkpoints", id); }));
  const std::vector<pid_t> trainers = service.trainers("w1");
  ASSERT_EQ(trainers.size(), 1U);
  ::kill(trainers[0], SIGSTOP);
  service.worker("w1").signal(SIGSTOP);
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::LOST));
  EXPECT_EQ(service.attempt(id, 1).state(), v1::Attempt::LOST);
  EXPECT_EQ(service.job(id).state(), v1::Job::PENDING);
  EXPECT_EQ(service.job(id).pending_status().reason(), v1::PendingStatus::WORKER_LOST);
  service.worker("w1").signal(SIGCONT);
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::READY));
  EXPECT_TRUE(service.reaches(id, v1::Job::RUNNING));
  ::kill(trainers[0], SIGCONT);
  ASSERT_TRUE(service.reaches(id, v1::Job::SUCCEEDED));
  EXPECT_EQ(service.job(id).attempt_count(), 1);
}

}  // namespace
}  // namespace coat::testing
