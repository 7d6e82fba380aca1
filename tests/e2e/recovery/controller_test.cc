// The controller dies, stops, or is started twice.
#include <signal.h>

#include <chrono>
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

TEST(ControllerRecovery, AnAcknowledgedSubmitSurvivesKill) {
  Service service;
  service.start_controller();
  const std::string id = service.submit({.steps = 5});
  service.controller().kill_now();
  service.start_controller();
  EXPECT_EQ(service.job(id).state(), v1::Job::PENDING);
  service.start_worker({});
  EXPECT_TRUE(service.reaches(id, v1::Job::SUCCEEDED));
}

TEST(ControllerRecovery, ARunningJobIsReportedAgainAndSucceeds) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = 300, .checkpoint_interval = 10});
  ASSERT_TRUE(
      eventually([&] { return Service::has_checkpoint(service.worker_folder("w1") / "checkpoints", id); }));
  // Held still over the outage, so that it is certain to be running when the controller is back.
  const std::vector<pid_t> trainers = service.trainers("w1");
  ASSERT_EQ(trainers.size(), 1U);
  ::kill(trainers[0], SIGSTOP);
  ASSERT_TRUE(service.reaches(id, v1::Job::RUNNING));
  service.controller().kill_now();
  service.start_controller();
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::READY));
  EXPECT_EQ(service.job(id).state(), v1::Job::RUNNING);
  EXPECT_EQ(service.trainers("w1"), trainers);
  ::kill(trainers[0], SIGCONT);
  ASSERT_TRUE(service.reaches(id, v1::Job::SUCCEEDED));
  EXPECT_EQ(service.job(id).attempt_count(), 1);
  EXPECT_EQ(service.job(id).retries_used(), 0);
  EXPECT_EQ(service.job(id).summary().steps(), 300);
}

TEST(ControllerRecovery, AJobThatEndsDuringTheOutageIsReportedAfterIt) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = 100});
  ASSERT_TRUE(service.reaches(id, v1::Job::RUNNING));
  service.controller().kill_now();
  ASSERT_TRUE(eventually([&] { return service.trainers("w1").empty(); }));
  service.start_controller();
  ASSERT_TRUE(service.reaches(id, v1::Job::SUCCEEDED));
  const v1::Job job = service.job(id);
  std::string log;
  ASSERT_TRUE(service.client()
                  .stream_logs("jobs/" + id + "/attempts/1", 0, true, {},
                               [&](const std::string& data) {
                                 log += data;
                                 return true;
                               })
                  .ok());
  EXPECT_EQ(log, read_file(job.summary().log_path()));
}

TEST(ControllerRecovery, AWatchGoesOnOverARestart) {
  Service service;
  service.start_controller();
  const std::string id = service.submit({.steps = 5});
  Command watch;
  watch.arguments = {program("coat"), "--server", service.jobs_address(), "watch", id};
  watch.output = service.folder() / "watch.out";
  ChildProcess watcher(watch);
  ASSERT_TRUE(eventually([&] { return !read_file(watch.output).empty(); }));
  service.controller().kill_now();
  service.start_controller();
  service.start_worker({});
  EXPECT_EQ(watcher.wait().code, 0) << read_file(watch.output);
}

TEST(ControllerRecovery, StopsInOrder) {
  Service service;
  service.start_controller();
  service.start_worker({});
  const std::string id = service.submit({.steps = 1000000});
  ASSERT_TRUE(service.reaches(id, v1::Job::RUNNING));
  Command watch;
  watch.arguments = {program("coat"), "--server", service.jobs_address(), "logs", "-f", id};
  watch.output = service.folder() / "logs.out";
  ChildProcess follower(watch);
  ASSERT_TRUE(eventually([&] { return !read_file(watch.output).empty(); }));
  service.controller().signal(SIGTERM);
  const Exit exit = service.controller().wait(std::chrono::seconds(10));
  EXPECT_EQ(exit.code, 0);
  EXPECT_FALSE(std::filesystem::exists(service.controller_folder() / "endpoints.json"));
  EXPECT_FALSE(service.trainers("w1").empty());  // the job goes on
  service.start_controller();
  ASSERT_TRUE(service.client().cancel(id).ok());
  EXPECT_TRUE(service.reaches(id, v1::Job::CANCELLED));
}

TEST(ControllerRecovery, ASecondOneOnTheSameStateFolderIsRefused) {
  Service service;
  service.start_controller();
  const Output second =
      run_to_end({program("coat-controller"), "--state-dir", service.controller_folder(), "--listen",
                  "127.0.0.1:0", "--worker-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"},
                 service.folder());
  EXPECT_GT(second.exit.code, 0);
  EXPECT_NE((second.out + second.err).find(service.controller_folder().string()), std::string::npos)
      << second.err;
  EXPECT_NE((second.out + second.err).find(std::to_string(service.controller().pid())), std::string::npos)
      << second.err;
  EXPECT_EQ(service.cli({"list"}).exit.code, 0);
  EXPECT_TRUE(std::filesystem::exists(service.controller_folder() / "endpoints.json"));
}

}  // namespace
}  // namespace coat::testing
