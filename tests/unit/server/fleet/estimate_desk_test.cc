#include "server/fleet/estimate_desk.h"

#include <gtest/gtest.h>

namespace coat::fleet {
namespace {

using Kind = EstimateAnswer::Kind;
using std::chrono::seconds;

class EstimateDeskTest : public ::testing::Test {
 protected:
  std::int64_t open(const std::string& worker, int deadline) {
    return desk_.open(worker, SteadyTime(seconds(deadline)),
                      [this](const EstimateAnswer& answer) { answers_.push_back(answer); });
  }
  static v1::EstimateResult result(std::int64_t id) {
    v1::EstimateResult result;
    result.set_query_id(id);
    return result;
  }

  EstimateDesk desk_;
  std::vector<EstimateAnswer> answers_;
};

TEST_F(EstimateDeskTest, AnEstimateAnswersOnce) {
  const std::int64_t id = open("workers/w", 10);
  EXPECT_EQ(desk_.open_on("workers/w"), 1U);
  v1::EstimateResult good = result(id);
  good.mutable_estimate()->set_parameters(42);
  desk_.answer("workers/w", good);
  desk_.answer("workers/w", good);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].kind, Kind::kEstimate);
  EXPECT_EQ(answers_[0].estimate.parameters(), 42);
  EXPECT_EQ(answers_[0].worker, "workers/w");
  EXPECT_EQ(desk_.open_on("workers/w"), 0U);
}

TEST_F(EstimateDeskTest, AnotherWorkersAnswerIsIgnored) {
  const std::int64_t id = open("workers/w", 10);
  desk_.answer("workers/v", result(id));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(EstimateDeskTest, ABadSpecIsRefusedAndAnythingElseIsAFailure) {
  for (int reason = v1::ExitStatus::DONE; reason <= v1::ExitStatus::CANCELLED; ++reason) {
    v1::EstimateResult bad = result(open("workers/w", 10));
    bad.mutable_error()->set_reason(static_cast<v1::ExitStatus::Reason>(reason));
    desk_.answer("workers/w", bad);
    const bool refused = reason == v1::ExitStatus::BAD_SPEC || reason == v1::ExitStatus::DATA_ERROR;
    EXPECT_EQ(answers_.back().kind, refused ? Kind::kRefused : Kind::kFailed);
  }
}

TEST_F(EstimateDeskTest, TheClockAndALeavingWorkerAnswerToo) {
  open("workers/w", 10);
  open("workers/v", 20);
  open("workers/v", 30);
  EXPECT_EQ(desk_.next_deadline(), SteadyTime(seconds(10)));
  desk_.expire(SteadyTime(seconds(10)));
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].kind, Kind::kTimeout);
  desk_.worker_left("workers/v");
  ASSERT_EQ(answers_.size(), 3U);
  EXPECT_EQ(answers_[2].kind, Kind::kWorkerLeft);
  EXPECT_FALSE(desk_.next_deadline());
}

TEST_F(EstimateDeskTest, AnAnswerMayAskAgain) {
  desk_.open("workers/w", SteadyTime(seconds(1)), [this](const EstimateAnswer&) { open("workers/w", 5); });
  desk_.worker_left("workers/w");
  EXPECT_EQ(desk_.open_on("workers/w"), 1U);
}

}  // namespace
}  // namespace coat::fleet
