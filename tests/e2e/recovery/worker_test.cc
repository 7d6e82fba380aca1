// A trainer, a worker daemon or a whole worker dies while a job runs.
#include <signal.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

class WorkerRecovery : public ::testing::Test {
 protected:
  void SetUp() override {
    service_.start_controller();
    service_.start_worker({});
  }

  // A job of `steps` that has saved a checkpoint, with its trainer held still; returns its id.
  std::string job_at_a_checkpoint(std::int64_t steps) {
    const std::string id = service_.submit({.steps = steps, .checkpoint_interval = 10});
    EXPECT_TRUE(eventually(
        [&] { return Service::has_checkpoint(service_.worker_folder("w1") / "checkpoints", id); }));
    const std::vector<pid_t> trainers = service_.trainers("w1");
    EXPECT_EQ(trainers.size(), 1U);
    for (const pid_t pid : trainers) ::kill(pid, SIGSTOP);
    return id;
  }

  // Every process of the worker but its daemon: supervisors and trainers.
  void kill_what_the_daemon_left() { kill_processes_of(service_.worker_folder("w1")); }

  Service service_;
};

TEST_F(WorkerRecovery, AKilledTrainerIsTriedAgainFromItsCheckpoint) {
  const std::string id = job_at_a_checkpoint(300);
  ::kill(service_.trainers("w1").at(0), SIGKILL);
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  const v1::Job job = service_.job(id);
  EXPECT_EQ(job.attempt_count(), 2);
  EXPECT_EQ(job.retries_used(), 1);
  EXPECT_EQ(service_.attempt(id, 1).state(), v1::Attempt::FAILED);
  EXPECT_EQ(service_.attempt(id, 1).exit().reason(), v1::ExitStatus::KILLED);
  EXPECT_EQ(service_.attempt(id, 1).exit().signal(), SIGKILL);
  EXPECT_GE(service_.attempt(id, 2).resume_step(), 10);
  EXPECT_GT(service_.attempt(id, 2).epoch(), service_.attempt(id, 1).epoch());
}

// A limit on the size of its files is to the trainer what a full disk is.
TEST_F(WorkerRecovery, AFullDiskWhileSavingEndsTheJobAndKeepsItsLastCheckpoint) {
  const std::string id = job_at_a_checkpoint(300);
  const pid_t trainer = service_.trainers("w1").at(0);
  constexpr rlimit kLessThanACheckpoint{16384, 16384};
  ASSERT_EQ(::prlimit(trainer, RLIMIT_FSIZE, &kLessThanACheckpoint, nullptr), 0);
  ::kill(trainer, SIGCONT);
  ASSERT_TRUE(service_.reaches(id, v1::Job::FAILED));
  const v1::Attempt attempt = service_.attempt(id, 1);
  EXPECT_EQ(attempt.exit().reason(), v1::ExitStatus::CHECKPOINT_ERROR);
  const std::filesystem::path checkpoints = service_.worker_folder("w1") / "checkpoints" / id;
  for (const std::string& part :
       {std::string("bytes"), std::string("File too large"), checkpoints.string()}) {
    EXPECT_NE(attempt.exit().message().find(part), std::string::npos) << part << "\n"
                                                                      << attempt.exit().message();
  }
  std::vector<std::filesystem::path> saved;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    if (entry.is_directory()) saved.push_back(entry.path());
  }
  ASSERT_FALSE(saved.empty());
  for (const std::filesystem::path& folder : saved) {
    // Reads every file against the manifest's hashes.
    const Output sample =
        run_to_end({program("coat-trainer"), "--sample-from", folder, "--prompt", "the "}, service_.folder());
    EXPECT_EQ(sample.exit.code, 0) << folder << "\n" << sample.err;
  }
}

TEST_F(WorkerRecovery, AKilledDaemonFindsItsTrainerAgain) {
  const std::string id = job_at_a_checkpoint(300);
  const std::vector<pid_t> trainers = service_.trainers("w1");
  service_.worker("w1").kill_now();
  service_.start_worker({});
  ASSERT_TRUE(service_.worker_reaches("w1", v1::Worker::READY));
  EXPECT_EQ(service_.trainers("w1"), trainers);
  for (const pid_t pid : trainers) ::kill(pid, SIGCONT);
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  const v1::Job job = service_.job(id);
  EXPECT_EQ(job.attempt_count(), 1);
  EXPECT_EQ(job.retries_used(), 0);
  EXPECT_EQ(service_.cli({"logs", id}).out, read_file(job.summary().log_path()));
  std::int64_t samples = 0;
  service_.client().stream_metrics("jobs/" + id + "/attempts/1", 0, true, {},
                                   [&](const v1::MetricSample& sample) {
                                     EXPECT_EQ(sample.step(), ++samples);
                                     return true;
                                   });
  EXPECT_EQ(samples, 300);
}

TEST_F(WorkerRecovery, ATrainerThatEndsWhileItsDaemonIsAwayIsNotLost) {
  const std::string id = job_at_a_checkpoint(60);
  const std::vector<pid_t> trainers = service_.trainers("w1");
  service_.worker("w1").kill_now();
  for (const pid_t pid : trainers) ::kill(pid, SIGCONT);
  ASSERT_TRUE(eventually([&] { return service_.trainers("w1").empty(); }));
  service_.start_worker({});
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  EXPECT_EQ(service_.job(id).attempt_count(), 1);
  EXPECT_EQ(service_.job(id).summary().steps(), 60);
}

TEST_F(WorkerRecovery, AfterTheWholeWorkerDiedTheJobGoesOnFromItsCheckpoint) {
  const std::string id = job_at_a_checkpoint(300);
  service_.worker("w1").kill_now();
  kill_what_the_daemon_left();
  service_.start_worker({});
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  EXPECT_EQ(service_.job(id).attempt_count(), 2);
  EXPECT_GE(service_.attempt(id, 2).resume_step(), 10);
}

TEST_F(WorkerRecovery, AStoppedWorkerSavesAndTheJobGoesOnWithoutARetry) {
  const std::string id = service_.submit({.steps = 400, .checkpoint_interval = 0});
  ASSERT_TRUE(service_.reaches(id, [](const v1::Job& job) { return job.progress().step() > 0; }));
  service_.worker("w1").signal(SIGTERM);
  EXPECT_EQ(service_.worker("w1").wait(), (Exit{.code = 0, .signal = 0}));
  EXPECT_FALSE(std::filesystem::exists(service_.worker_folder("w1") / "endpoints.json"));
  EXPECT_TRUE(service_.trainers("w1").empty());
  service_.start_worker({});
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  const v1::Job job = service_.job(id);
  EXPECT_EQ(job.retries_used(), 0);
  EXPECT_EQ(job.attempt_count(), 2);
  EXPECT_EQ(service_.attempt(id, 1).exit().reason(), v1::ExitStatus::STOPPED);
  EXPECT_GT(service_.attempt(id, 2).resume_step(), 0);
}

TEST_F(WorkerRecovery, ASecondDaemonOnTheSameStateFolderIsRefused) {
  const Output second =
      run_to_end({program("coat-worker"), "--state-dir", service_.worker_folder("w1"), "--controller",
                  service_.workers_address(), "--metrics-listen", "127.0.0.1:0"},
                 service_.folder());
  EXPECT_GT(second.exit.code, 0);
  EXPECT_NE((second.out + second.err).find(service_.worker_folder("w1").string()), std::string::npos)
      << second.err;
}

}  // namespace
}  // namespace coat::testing
