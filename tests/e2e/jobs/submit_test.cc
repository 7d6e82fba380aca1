// One job through every process, and what is left of it afterwards.
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

class SubmitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    service_.start_controller();
    service_.start_worker({});
  }

  Service service_;
};

TEST_F(SubmitTest, TrainsAndSucceeds) {
  const std::string id = service_.submit({.steps = 60, .checkpoint_interval = 20});
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  const v1::Job job = service_.job(id);
  EXPECT_EQ(job.name(), "jobs/" + id);
  EXPECT_EQ(job.exit().reason(), v1::ExitStatus::DONE);
  EXPECT_EQ(job.attempt_count(), 1);
  EXPECT_EQ(job.retries_used(), 0);
  EXPECT_EQ(job.summary().steps(), 60);
  EXPECT_EQ(job.summary().tokens(), 60 * 2 * 32);
  EXPECT_LT(job.summary().last_loss(), job.summary().first_loss());
  EXPECT_GT(job.summary().unigram_entropy(), 1.0);
  EXPECT_LT(job.summary().memory().moment1_bytes(), job.summary().memory_bf16().moment1_bytes());
  EXPECT_FALSE(job.summary().quantization().empty());
  EXPECT_FALSE(job.summary().sample().empty());
  EXPECT_EQ(job.summary().checkpoint_step(), 60);
  EXPECT_TRUE(
      std::filesystem::exists(std::filesystem::path(job.summary().checkpoint_path()) / "manifest.json"));
  const v1::Attempt attempt = service_.attempt(id, 1);
  EXPECT_EQ(attempt.state(), v1::Attempt::SUCCEEDED);
  EXPECT_EQ(attempt.worker(), "workers/w1");
  EXPECT_TRUE(service_.trainers("w1").empty());
}

TEST_F(SubmitTest, BothRecipesTrain) {
  const std::string id = service_.submit({.name = "plain", .recipe = "bf16", .steps = 20});
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  const v1::TrainingSummary summary = service_.job(id).summary();
  EXPECT_EQ(summary.memory().total_bytes(), summary.memory_bf16().total_bytes());
}

TEST_F(SubmitTest, JobsOfOneDeviceRunOneAfterTheOther) {
  std::vector<std::string> ids;
  for (const char* name : {"first", "second", "third"})
    ids.push_back(service_.submit({.name = name, .steps = 20}));
  for (const std::string& id : ids) ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED)) << id;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const auto earlier = service_.attempt(ids[i - 1], 1).end_time();
    const auto later = service_.attempt(ids[i], 1).create_time();
    EXPECT_LE(std::make_pair(earlier.seconds(), earlier.nanos()),
              std::make_pair(later.seconds(), later.nanos()));
  }
}

TEST_F(SubmitTest, WatchSeesEveryEventOnceInOrder) {
  const std::string id = service_.submit({.steps = 20});
  std::vector<std::int64_t> sequences;
  std::vector<std::string> states;
  const auto error = service_.client().watch(id, 0, {}, [&](const v1::WatchJobsResponse& change) {
    if (!change.has_event()) return true;
    sequences.push_back(change.event().sequence());
    if (change.event().object() == "jobs/" + id && change.event().from_state() != change.event().to_state()) {
      states.push_back(change.event().to_state());
    }
    return true;
  });
  ASSERT_FALSE(error.has_value()) << error->message;
  EXPECT_EQ(states, (std::vector<std::string>{"PENDING", "RUNNING", "SUCCEEDED"}));
  EXPECT_EQ(service_.job(id).last_sequence(), sequences.back());

  // Again from the middle: the rest, without gap or repetition.
  const std::size_t middle = sequences.size() / 2;
  std::vector<std::int64_t> rest;
  service_.client().watch(id, sequences[middle - 1], {}, [&](const v1::WatchJobsResponse& change) {
    if (change.has_event()) rest.push_back(change.event().sequence());
    return true;
  });
  EXPECT_EQ(rest, std::vector<std::int64_t>(sequences.begin() + static_cast<std::ptrdiff_t>(middle),
                                            sequences.end()));
}

TEST_F(SubmitTest, LogAndMetricsToTheLastByte) {
  const std::string id = service_.submit({.steps = 60});
  std::string followed;
  const auto end =
      service_.client().stream_logs("jobs/" + id + "/attempts/1", 0, true, {}, [&](const std::string& data) {
        followed += data;
        return true;
      });
  if (!end.ok()) {  // the attempt did not exist yet
    ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
    ASSERT_TRUE(service_.client()
                    .stream_logs("jobs/" + id + "/attempts/1", 0, true, {},
                                 [&](const std::string& data) {
                                   followed += data;
                                   return true;
                                 })
                    .ok());
  }
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  const std::string written = read_file(service_.job(id).summary().log_path());
  EXPECT_FALSE(written.empty());
  EXPECT_EQ(followed, written);
  EXPECT_EQ(service_.cli({"logs", id}).out, written);

  std::vector<std::int64_t> steps;
  service_.client().stream_metrics("jobs/" + id + "/attempts/1", 0, true, {},
                                   [&](const v1::MetricSample& sample) {
                                     steps.push_back(sample.step());
                                     return true;
                                   });
  ASSERT_EQ(steps.size(), 60U);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<std::int64_t>(i) + 1);
}

TEST_F(SubmitTest, RepeatedRequestIdIsOneJob) {
  v1::JobSpec spec;
  spec.set_name("once");
  spec.mutable_data()->set_path(service_.folder() / "text.txt");
  spec.mutable_training()->set_steps(1);
  const auto first = service_.client().submit(spec, "request-1");
  ASSERT_TRUE(first.ok()) << first.error().message;
  const auto again = service_.client().submit(spec, "request-1");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(first.value().name(), again.value().name());
  spec.mutable_training()->set_steps(2);
  const auto other = service_.client().submit(spec, "request-1");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().reason, "REQUEST_ID_REUSED");
}

TEST_F(SubmitTest, CommandLineWaitsAndSummarises) {
  const Output waited = service_.cli({"submit", service_.write_job({.steps = 20}), "--wait"});
  EXPECT_EQ(waited.exit.code, 0) << waited.err;
  const Output listed = service_.cli({"list", "-o", "name"});
  ASSERT_EQ(listed.exit.code, 0) << listed.err;
  const std::string id = listed.out.substr(0, listed.out.find('\n'));
  const Output described = service_.cli({"describe", id});
  EXPECT_EQ(described.exit.code, 0) << described.err;
  for (const char* part : {"loss", "entropy", "bf16", "moment", "checkpoint", "attempts"}) {
    EXPECT_NE(described.out.find(part), std::string::npos) << part << " is missing in\n" << described.out;
  }
}

}  // namespace
}  // namespace coat::testing
