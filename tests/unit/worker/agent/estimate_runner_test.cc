#include "worker/agent/estimate_runner.h"

#include <future>

#include <gtest/gtest.h>

#include "proto/common/clock.h"
#include "tests/unit/worker/agent/agent_test_support.h"

namespace coat::agent {
namespace {

using testing::binary;
using testing::eventually;
using testing::none_alive;
using testing::noted_pids;
using testing::ScratchFolder;

class EstimateRunnerTest : public ::testing::Test {
 protected:
  EstimateRunnerOptions options() {
    EstimateRunnerOptions options;
    options.folder = scratch_ / "estimates";
    options.trainer = binary("coat-fake-trainer");
    options.worker_id = "w";
    return options;
  }
  v1::EstimateQuery query(const std::string& kind) {
    v1::EstimateQuery query;
    query.set_query_id(7);
    (*query.mutable_spec()->mutable_labels())["estimate"] = kind;
    (*query.mutable_spec()->mutable_labels())["pids"] = (scratch_ / "pids").string();
    return query;
  }
  v1::EstimateResult answer(EstimateRunner& runner, const v1::EstimateQuery& query) {
    std::promise<v1::EstimateResult> promise;
    runner.submit(query, [&promise](v1::EstimateResult result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  }
  v1::EstimateResult answer(const v1::EstimateQuery& query) {
    EstimateRunner runner(options(), inventory_);
    return answer(runner, query);
  }

  ScratchFolder scratch_;
  Inventory inventory_{
      {.cpu_devices = 1, .memory_limit_bytes = 1 << 30, .worker_id = "w"}, nullptr, real_clock()};
};

TEST_F(EstimateRunnerTest, TheTrainersEstimateIsTheAnswer) {
  const v1::EstimateResult result = answer(query("good"));
  EXPECT_EQ(result.query_id(), 7);
  ASSERT_TRUE(result.has_estimate()) << result.DebugString();
  EXPECT_EQ(result.estimate().memory().total_bytes(), 1234);
  EXPECT_EQ(result.estimate().worker(), "workers/w");
  EXPECT_FALSE(result.has_error());
  EXPECT_TRUE(std::filesystem::is_empty(scratch_ / "estimates"));
}

TEST_F(EstimateRunnerTest, AFailureNamesFieldAndFix) {
  const v1::EstimateResult result = answer(query("failure"));
  ASSERT_TRUE(result.has_error());
  EXPECT_EQ(result.error().reason(), v1::ExitStatus::DATA_ERROR);
  EXPECT_EQ(result.error().field(), "data.path");
  EXPECT_EQ(result.error().fix(), "name a file");
}

TEST_F(EstimateRunnerTest, NonsenseIsAnInternalErrorThatQuotesTheTrainer) {
  const v1::EstimateResult result = answer(query("garbage"));
  EXPECT_EQ(result.error().reason(), v1::ExitStatus::INTERNAL);
  EXPECT_NE(result.error().message().find("no such recipe of errors"), std::string::npos);
}

TEST_F(EstimateRunnerTest, ATrainerThatHangsIsKilled) {
  EstimateRunnerOptions impatient = options();
  impatient.timeout = std::chrono::milliseconds(300);
  EstimateRunner runner(impatient, inventory_);
  const v1::EstimateResult result = answer(runner, query("hang"));
  EXPECT_EQ(result.error().reason(), v1::ExitStatus::INTERNAL);
  EXPECT_TRUE(none_alive(noted_pids(scratch_ / "pids")));
}

TEST_F(EstimateRunnerTest, EndsWhileEstimatesRun) {
  {
    EstimateRunner runner(options(), inventory_);
    for (int i = 0; i < 5; ++i) {
      runner.submit(query("hang"), [](const v1::EstimateResult&) { ADD_FAILURE() << "answered"; });
    }
    ASSERT_TRUE(eventually([this] { return noted_pids(scratch_ / "pids").size() == 2; })) << "two at a time";
  }
  EXPECT_EQ(noted_pids(scratch_ / "pids").size(), 2U);
  EXPECT_TRUE(none_alive(noted_pids(scratch_ / "pids")));
}

TEST_F(EstimateRunnerTest, WhatThisWorkerCannotAnswerIsSaid) {
  EstimateRunnerOptions none = options();
  none.trainer = "/nowhere/coat-trainer";
  EstimateRunner broken(none, inventory_);
  EXPECT_NE(answer(broken, query("good")).error().message().find("/nowhere/coat-trainer"), std::string::npos);
  v1::EstimateQuery cuda = query("good");
  cuda.mutable_spec()->mutable_resources()->set_device("cuda");
  EXPECT_NE(answer(cuda).error().message().find("cuda"), std::string::npos);
  v1::EstimateQuery gang = query("good");
  gang.mutable_spec()->mutable_resources()->set_devices(4);
  EXPECT_EQ(answer(gang).error().reason(), v1::ExitStatus::BAD_SPEC);
  EXPECT_EQ(answer(gang).error().field(), "resources.devices");
  EstimateRunnerOptions full = options();
  full.max_waiting = 0;
  EstimateRunner busy(full, inventory_);
  EXPECT_NE(answer(busy, query("good")).error().message().find("too many"), std::string::npos);
}

}  // namespace
}  // namespace coat::agent
