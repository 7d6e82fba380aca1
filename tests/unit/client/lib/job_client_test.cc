#include "client/lib/job_client.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/client/fake_job_service.h"

namespace coat::client {
namespace {

using ::testing::ElementsAre;
using testing::FakeJobService;
using ::testing::MatchesRegex;
using testing::running_job;
using ::testing::SizeIs;

ClientOptions options_of(const FakeJobService& service) {
  ClientOptions options;
  options.address = service.address();
  options.reconnect = {.initial = std::chrono::milliseconds(1), .maximum = std::chrono::milliseconds(5)};
  return options;
}

v1::JobSpec sound_spec() {
  v1::JobSpec spec;
  spec.set_name("a-job");
  spec.mutable_data()->set_path("/x");
  spec.mutable_training()->set_steps(5);
  return spec;
}

TEST(JobClient, SubmitMakesARequestIdOfItsOwn) {
  FakeJobService service;
  JobClient client(options_of(service));
  ASSERT_TRUE(client.submit(sound_spec(), "").ok());
  ASSERT_TRUE(client.submit(sound_spec(), "mine").ok());
  const auto requests = service.submits();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_THAT(requests[0].request_id(),
              MatchesRegex("[0-9a-f]+-[0-9a-f]+-4[0-9a-f]+-[89ab][0-9a-f]+-[0-9a-f]+"));
  EXPECT_THAT(requests[0].request_id(), SizeIs(36));
  EXPECT_EQ(requests[1].request_id(), "mine");
}

TEST(JobClient, RequestIdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(fresh_request_id());
  EXPECT_THAT(ids, SizeIs(1000));
}

TEST(JobClient, ErrorsArriveWithReasonFieldAndFix) {
  FakeJobService service;
  JobClient client(options_of(service));
  v1::JobSpec spec = sound_spec();
  spec.mutable_training()->set_steps(0);
  const auto result = client.submit(spec, "");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(result.error().reason, "INVALID_FIELD");
  EXPECT_THAT(result.error().violations,
              ElementsAre(spec::Violation{"training.steps", "0 is too small", "use 1 or more"}));
}

TEST(JobClient, UnavailableIsTriedAgainAndNothingElseIs) {
  FakeJobService service;
  service.put(running_job("j", 1));
  JobClient client(options_of(service));
  service.fail_next("GetJob", unavailable("STARTING", "not yet"), 2);
  EXPECT_TRUE(client.get("j").ok());
  EXPECT_EQ(service.calls("GetJob"), 3);
  service.fail_next("GetJob", failed_precondition("ODD", "no"));
  EXPECT_EQ(client.get("j").error().reason, "ODD");
  EXPECT_EQ(service.calls("GetJob"), 4);
}

TEST(JobClient, NamesWithAndWithoutTheirFolder) {
  FakeJobService service;
  service.put(running_job("j", 1));
  JobClient client(options_of(service));
  EXPECT_EQ(client.get("j").value().name(), "jobs/j");
  EXPECT_EQ(client.get("jobs/j").value().name(), "jobs/j");
  EXPECT_EQ(client.get("k").error().reason, "JOB_NOT_FOUND");
}

TEST(JobClient, ListAsksForPageAfterPage) {
  FakeJobService service;
  for (int i = 0; i < 450; ++i) service.put(running_job("j" + std::to_string(i), 1));
  JobClient client(options_of(service));
  const auto all = client.list({});
  ASSERT_THAT(all.value(), SizeIs(450));
  EXPECT_EQ(all.value().front().name(), "jobs/j449");
  EXPECT_EQ(service.calls("ListJobs"), 3);
  const auto some = client.list({.limit = 250});
  EXPECT_THAT(some.value(), SizeIs(250));
  EXPECT_EQ(service.calls("ListJobs"), 5);
  EXPECT_EQ(service.lists().back().page_size(), 50);
}

TEST(JobClient, ListSendsItsFilters) {
  FakeJobService service;
  JobClient client(options_of(service));
  ASSERT_TRUE(client.list({{v1::Job::PENDING}, "quick", {{"team", "x"}}, 7}).ok());
  const v1::ListJobsRequest request = service.lists().front();
  EXPECT_THAT(request.states(), ElementsAre(v1::Job::PENDING));
  EXPECT_EQ(request.name_prefix(), "quick");
  EXPECT_EQ(request.labels().at("team"), "x");
  EXPECT_EQ(request.page_size(), 7);
}

TEST(JobClient, AServiceThatIsNotThereIsToldSoon) {
  std::string address;
  {
    const FakeJobService gone;
    address = gone.address();
  }
  JobClient client({.address = address});
  EXPECT_EQ(client.get("j").error().code, grpc::StatusCode::UNAVAILABLE);
  const auto error = client.watch("j", 0, {}, [](const v1::WatchJobsResponse&) { return true; });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, grpc::StatusCode::UNAVAILABLE);
}

TEST(JobClient, StopEndsACallUnderWay) {
  FakeJobService service;
  std::stop_source stop;
  ClientOptions options = options_of(service);
  options.stop = stop.get_token();
  JobClient client(options);
  stop.request_stop();
  const auto result = client.get("j");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().reason, kStopped);
}

}  // namespace
}  // namespace coat::client
