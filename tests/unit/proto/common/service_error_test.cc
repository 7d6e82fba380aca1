#include "proto/common/service_error.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <gtest/gtest.h>

namespace coat {
namespace {

using ::testing::SizeIs;

TEST(ServiceError, TravelsThroughAStatusWhole) {
  ServiceError error{
      grpc::StatusCode::FAILED_PRECONDITION,
      "MEMORY_ESTIMATE_EXCEEDS_DEVICE",
      "the job needs 3 GiB",
      {{"needed_bytes", "3221225472"}},
      {{"training.micro_batch", "64 is too much; really", "use 8"}, {"recipe", "holds more", ""}}};
  const ServiceError back = from_status(to_status(error));
  EXPECT_EQ(back.code, error.code);
  EXPECT_EQ(back.reason, error.reason);
  EXPECT_EQ(back.message, error.message);
  EXPECT_EQ(back.metadata, error.metadata);
  EXPECT_EQ(back.violations, error.violations);
}

TEST(ServiceError, IsAGoogleRpcStatus) {
  const grpc::Status status =
      to_status(invalid_argument({{"training.steps", "0 is too small", "use 1 or more"}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), status.error_message());
  ASSERT_THAT(details.details(), SizeIs(2));
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.domain(), "coat");
  EXPECT_EQ(info.reason(), "INVALID_FIELD");
  google::rpc::BadRequest request;
  ASSERT_TRUE(details.details(1).UnpackTo(&request));
  EXPECT_EQ(request.field_violations(0).field(), "training.steps");
  EXPECT_EQ(request.field_violations(0).description(), "0 is too small; use 1 or more");
}

// gRPC drops a call whose trailing metadata is larger than 8 KiB; base64 adds a third.
TEST(ServiceError, StaysSmallWhateverIsWrong) {
  std::vector<spec::Violation> violations;
  for (int i = 0; i < 500; ++i)
    violations.push_back({"labels.k" + std::to_string(i), std::string(3000, 'x'), "fix"});
  ServiceError error = invalid_argument(violations);
  error.message += std::string(100000, 'y');
  for (int i = 0; i < 100; ++i) error.metadata["key" + std::to_string(i)] = std::string(500, 'z');
  const grpc::Status status = to_status(error);
  EXPECT_LT(status.error_message().size() + status.error_details().size() * 4 / 3, 8192U - 512U);
  const ServiceError back = from_status(status);
  EXPECT_EQ(back.violations.front().field, "labels.k0");
  EXPECT_THAT(back.violations.back().message, ::testing::HasSubstr("more problems"));
}

TEST(ServiceError, AStatusOfAnotherMakerHasNoReason) {
  const ServiceError error = from_status({grpc::StatusCode::UNAVAILABLE, "connection refused"});
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "");
  EXPECT_EQ(error.message, "connection refused");
  EXPECT_EQ(from_status({grpc::StatusCode::INTERNAL, "m", "no protobuf \xff"}).reason, "");
  EXPECT_THROW(from_status(grpc::Status::OK), std::logic_error);
}

TEST(ServiceError, TheUsualKinds) {
  const ServiceError missing = not_found("job", "jobs/x");
  EXPECT_EQ(missing.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(missing.reason, "JOB_NOT_FOUND");
  EXPECT_EQ(missing.message, "there is no job \"jobs/x\"");
  EXPECT_EQ(missing.metadata.at("job"), "jobs/x");
  EXPECT_EQ(failed_precondition("NO_WORKER", "m").code, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(unavailable("DRAINING", "m").code, grpc::StatusCode::UNAVAILABLE);
}

TEST(ServiceError, PeopleReadEachProblemOnce) {
  EXPECT_EQ(format_for_people(invalid_argument({{"name", "is empty", "give one"}})),
            "name: is empty; give one\n");
  EXPECT_EQ(format_for_people(invalid_argument({{"name", "is empty", "give one"}, {"recipe", "is odd", ""}})),
            "2 problems: name, recipe\n  name: is empty; give one\n  recipe: is odd\n");
  EXPECT_EQ(format_for_people(unavailable("X", "away")), "away\n");
}

}  // namespace
}  // namespace coat
