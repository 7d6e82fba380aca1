#include "tests/unit/server/api/fake_worker.h"
#include "tests/unit/server/api/service_fixture.h"

namespace coat::testing {
namespace {

class JobServiceTest : public ServiceTest {
 protected:
  ServiceError submit_error(const v1::JobSpec& spec, const std::string& request_id = "",
                            bool validate_only = false) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    request.set_validate_only(validate_only);
    v1::SubmitJobResponse response;
    Context context;
    const grpc::Status status = jobs_->SubmitJob(&context, request, &response);
    EXPECT_FALSE(status.ok());
    return status.ok() ? ServiceError{} : from_status(status);
  }
  v1::ListJobsResponse list(const v1::ListJobsRequest& request) {
    v1::ListJobsResponse response;
    Context context;
    const grpc::Status status = jobs_->ListJobs(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  ServiceError list_error(const v1::ListJobsRequest& request) {
    v1::ListJobsResponse response;
    Context context;
    const grpc::Status status = jobs_->ListJobs(&context, request, &response);
    EXPECT_FALSE(status.ok());
    return status.ok() ? ServiceError{} : from_status(status);
  }
  grpc::Status get_status(const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    v1::GetJobResponse response;
    Context context;
    return jobs_->GetJob(&context, request, &response);
  }
};

TEST_F(JobServiceTest, ASubmittedJobIsThereWithEveryFieldSet) {
  const v1::Job job = submit();
  EXPECT_TRUE(job.name().starts_with("jobs/tiny-")) << job.name();
  EXPECT_EQ(job.name().size(), std::string("jobs/tiny-12345").size());
  EXPECT_EQ(job.spec().model().hidden(), 256) << "defaults are written down";
  EXPECT_EQ(job.state(), v1::Job::PENDING);
  EXPECT_GT(job.last_sequence(), 0);
  EXPECT_EQ(get(job.name()).uid(), job.uid());
  EXPECT_EQ(get(job.name().substr(5)).uid(), job.uid());
}

TEST_F(JobServiceTest, ABadSpecNamesTheFieldAndTheFix) {
  v1::JobSpec spec = small_spec();
  spec.mutable_model()->set_heads(3);
  spec.mutable_training()->set_steps(0);
  const ServiceError error = submit_error(spec);
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error.reason, "INVALID_FIELD");
  std::vector<std::string> fields;
  for (const auto& violation : error.violations) fields.push_back(violation.field);
  EXPECT_NE(std::find(fields.begin(), fields.end(), "training.steps"), fields.end());
  EXPECT_EQ(list({}).jobs_size(), 0) << "nothing is kept of it";
}

TEST_F(JobServiceTest, ARequestIdMakesSubmitIdempotent) {
  const v1::Job first = submit(small_spec(), "id-1");
  EXPECT_EQ(submit(small_spec(), "id-1").name(), first.name());
  EXPECT_NE(submit(small_spec(), "id-2").name(), first.name());
  v1::JobSpec other = small_spec();
  other.mutable_training()->set_steps(11);
  const ServiceError error = submit_error(other, "id-1");
  EXPECT_EQ(error.code, grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(error.reason, "REQUEST_ID_REUSED");
  EXPECT_EQ(error.metadata.at("job"), first.name());
  EXPECT_EQ(list({}).jobs_size(), 2);
}

TEST_F(JobServiceTest, ARequestIdIsKnownAfterARestartAndAfterTheJobsEnd) {
  const v1::Job first = submit(small_spec(), "id-1");
  cancel(first.name());
  restart();
  const v1::Job again = submit(small_spec(), "id-1");
  EXPECT_EQ(again.name(), first.name());
  EXPECT_EQ(again.state(), v1::Job::CANCELLED);
}

TEST_F(JobServiceTest, ARequestIdIsForgottenAfterADay) {
  const v1::Job first = submit(small_spec(), "id-1");
  clock_.advance(std::chrono::hours(25));
  EXPECT_TRUE(eventually([&] { return submit(small_spec(), "id-1").name() != first.name(); }));
}

TEST_F(JobServiceTest, ARequestIdThatIsTooLongIsRefused) {
  EXPECT_EQ(submit_error(small_spec(), std::string(65, 'x')).violations.at(0).field, "request_id");
}

TEST_F(JobServiceTest, NamesThatAreNoneAndJobsThatAreNot) {
  EXPECT_EQ(get_status("jobs/none-12345").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(from_status(get_status("jobs/none-12345")).reason, "JOB_NOT_FOUND");
  for (const char* bad : {"", "jobs/", "No Name", "../x"}) {
    const grpc::Status status = get_status(bad);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad;
    EXPECT_EQ(from_status(status).violations.at(0).field, "name");
  }
}

TEST_F(JobServiceTest, ListPagesAndFilters) {
  v1::JobSpec labelled = small_spec("blue");
  (*labelled.mutable_labels())["team"] = "x";
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) names.push_back(submit(i % 2 == 0 ? small_spec() : labelled).name());
  cancel(names[0]);

  v1::ListJobsRequest request;
  request.set_page_size(2);
  std::vector<std::string> seen;
  do {
    const v1::ListJobsResponse page = list(request);
    EXPECT_LE(page.jobs_size(), 2);
    for (const v1::Job& job : page.jobs()) seen.push_back(job.name());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, std::vector<std::string>(names.rbegin(), names.rend()));

  v1::ListJobsRequest filtered;
  (*filtered.mutable_labels())["team"] = "x";
  EXPECT_EQ(list(filtered).jobs_size(), 2);
  v1::ListJobsRequest cancelled;
  cancelled.add_states(v1::Job::CANCELLED);
  ASSERT_EQ(list(cancelled).jobs_size(), 1);
  EXPECT_EQ(list(cancelled).jobs(0).name(), names[0]);
  v1::ListJobsRequest prefix;
  prefix.set_name_prefix("blu");
  EXPECT_EQ(list(prefix).jobs_size(), 2);
}

TEST_F(JobServiceTest, BadLists) {
  v1::ListJobsRequest negative;
  negative.set_page_size(-1);
  EXPECT_EQ(list_error(negative).violations.at(0).field, "page_size");
  v1::ListJobsRequest unspecified;
  unspecified.add_states(v1::Job::STATE_UNSPECIFIED);
  EXPECT_EQ(list_error(unspecified).violations.at(0).field, "states");
  for (int i = 0; i < 2; ++i) submit();
  v1::ListJobsRequest request;
  request.set_page_size(1);
  request.set_page_token(list(request).next_page_token());
  ASSERT_FALSE(request.page_token().empty());
  EXPECT_EQ(list(request).jobs_size(), 1);
  request.set_name_prefix("t");
  EXPECT_EQ(list_error(request).violations.at(0).field, "page_token") << "a token of another list";
  request.set_page_token("nonsense");
  EXPECT_EQ(list_error(request).violations.at(0).field, "page_token");
}

TEST_F(JobServiceTest, CancelOfAPendingAndOfAnEndedJob) {
  const std::string name = submit().name();
  EXPECT_EQ(cancel(name).state(), v1::Job::CANCELLED);
  EXPECT_EQ(get(name).state(), v1::Job::CANCELLED);
  EXPECT_EQ(cancel(name).state(), v1::Job::CANCELLED) << "again: as it is";
}

TEST_F(JobServiceTest, AJobWithoutAnyWorkerSaysSo) {
  const std::string name = submit().name();
  EXPECT_TRUE(waits_for(name, v1::PendingStatus::NO_WORKER));
  EXPECT_EQ(get(name).pending_status().queue_position(), 1);
  EXPECT_TRUE(
      eventually([&] { return list({}).jobs(0).pending_status().reason() == v1::PendingStatus::NO_WORKER; }));
}

TEST_F(JobServiceTest, ValidateOnlyKeepsNothing) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = small_spec();
  request.set_validate_only(true);
  v1::SubmitJobResponse response;
  Context context;
  ASSERT_TRUE(jobs_->SubmitJob(&context, request, &response).ok());
  EXPECT_TRUE(response.job().name().empty());
  EXPECT_EQ(response.job().spec().model().hidden(), 256);
  EXPECT_FALSE(response.has_estimate()) << "no worker is connected";
  EXPECT_EQ(list({}).jobs_size(), 0);

  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), 12345);
  Context second;
  ASSERT_TRUE(jobs_->SubmitJob(&second, request, &response).ok());
  EXPECT_EQ(response.estimate().memory().total_bytes(), 12345);
  EXPECT_TRUE(response.estimate().fits());
  EXPECT_EQ(response.estimate().worker(), "workers/w");
}

TEST_F(JobServiceTest, ValidateOnlyRefusesWhatNoDeviceHolds) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), std::int64_t{1} << 31);
  const ServiceError error = submit_error(small_spec(), "", true);
  EXPECT_EQ(error.code, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(error.reason, "MEMORY_ESTIMATE_EXCEEDS_DEVICE");
  EXPECT_EQ(error.metadata.at("needed_bytes"), "2147483648");
  EXPECT_EQ(error.metadata.at("device_bytes"), "1073741824");
}

TEST_F(JobServiceTest, ValidateOnlyPassesOnWhatTheWorkerFound) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), -1);
  std::thread answer([&worker] {
    const auto query = worker.next(v1::ControllerMessage::kEstimate);
    ASSERT_TRUE(query);
    v1::EstimateResult result;
    result.set_query_id(query->estimate().query_id());
    result.mutable_error()->set_reason(v1::ExitStatus::DATA_ERROR);
    result.mutable_error()->set_field("data.path");
    result.mutable_error()->set_message("/data/text does not exist");
    result.mutable_error()->set_fix("name a file on the worker");
    worker.send(result);
  });
  const ServiceError error = submit_error(small_spec(), "", true);
  answer.join();
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_EQ(error.violations.size(), 1U);
  EXPECT_EQ(error.violations[0].field, "data.path");
}

TEST_F(JobServiceTest, EstimateNeedsAWorker) {
  v1::EstimateJobRequest request;
  *request.mutable_spec() = small_spec();
  v1::EstimateJobResponse response;
  Context context;
  const grpc::Status status = jobs_->EstimateJob(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(from_status(status).reason, "NO_WORKER");

  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), std::int64_t{1} << 31);
  Context second;
  ASSERT_TRUE(jobs_->EstimateJob(&second, request, &response).ok());
  EXPECT_FALSE(response.estimate().fits()) << "an answer, not an error";
  EXPECT_EQ(response.estimate().device_memory_bytes(), 1 << 30);
}

class ImpatientTest : public JobServiceTest {
 protected:
  ImpatientTest() {
    options_.estimate_timeout = std::chrono::seconds(2);  // shorter than the lease
    restart();
  }
};

TEST_F(ImpatientTest, AnEstimateThatNeverComesEndsByTheClock) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), -1);
  std::thread patience([&] {
    EXPECT_TRUE(worker.next(v1::ControllerMessage::kEstimate));
    clock_.advance(std::chrono::seconds(3));
  });
  const ServiceError error = submit_error(small_spec(), "", true);
  patience.join();
  EXPECT_EQ(error.code, grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(error.reason, "ESTIMATE_TIMEOUT");
}

TEST_F(JobServiceTest, CallsAreCounted) {
  submit();
  get_status("jobs/none-12345");
  const auto families = metrics_->registry()->Collect();
  double ok = 0;
  double missing = 0;
  for (const auto& family : families) {
    if (family.name != "coat_grpc_server_handled_total") continue;
    for (const auto& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.value == "OK") ok += metric.counter.value;
        if (label.value == "NOT_FOUND") missing += metric.counter.value;
      }
    }
  }
  EXPECT_EQ(ok, 1);
  EXPECT_EQ(missing, 1);
}

TEST_F(JobServiceTest, AfterStopEveryCallIsUnavailable) {
  controller_->stop();
  EXPECT_EQ(submit_error(small_spec()).code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(get_status("jobs/none-12345").error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace coat::testing
