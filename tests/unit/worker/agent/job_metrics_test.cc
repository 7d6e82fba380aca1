#include "worker/agent/job_metrics.h"

#include <limits>

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace coat::agent {
namespace {

class JobMetricsTest : public ::testing::Test {
 protected:
  JobMetricsTest() { clock_.advance(std::chrono::hours(1)); }

  static TrainingState at_step(std::int64_t step, std::int64_t tokens) {
    TrainingState state;
    state.started.emplace();
    state.started->estimate.memory.weights_bytes = 10;
    state.started->estimate.memory.total_bytes = 60;
    state.step.emplace();
    state.step->step = step;
    state.step->tokens = tokens;
    state.step->loss = 2.5;
    state.step->memory_bytes = 100;
    state.step->quantization.push_back({"moment1", "e4m3", 0.02, 0.25, 0.125, 1.5, {{1.5, 0.625}, {16, 1}}});
    return state;
  }
  std::string scraped() { return prometheus::TextSerializer().Serialize(metrics_.registry()->Collect()); }
  bool shows(const std::string& line) { return scraped().find(line + "\n") != std::string::npos; }

  ManualClock clock_;
  Metrics metrics_{"coat-worker", "0"};
  JobMetrics job_metrics_{metrics_, clock_, std::chrono::seconds(60)};
};

TEST_F(JobMetricsTest, AStepsFiguresAreShown) {
  TrainingState state = at_step(3, 300);
  state.checkpoint = protocol::Checkpoint{2, "/c", 10, 0.5};
  state.checkpoint_time = 1000;
  job_metrics_.observe({"a", 1, false, state});
  EXPECT_TRUE(shows("coat_job_step{job=\"a\"} 3"));
  EXPECT_TRUE(shows("coat_job_loss{job=\"a\"} 2.5"));
  EXPECT_TRUE(shows("coat_job_tokens_total{job=\"a\"} 300"));
  EXPECT_TRUE(shows("coat_job_nonfinite_steps_total{job=\"a\"} 0"));
  EXPECT_TRUE(shows("coat_job_memory_bytes{job=\"a\",kind=\"allocated\"} 100"));
  EXPECT_TRUE(shows("coat_job_memory_bytes{job=\"a\",kind=\"estimated\"} 60"));
  EXPECT_TRUE(shows("coat_job_memory_ledger_bytes{category=\"weights\",job=\"a\"} 10"));
  EXPECT_TRUE(
      shows("coat_job_quant_relative_error_ratio{format=\"e4m3\",job=\"a\",tensor_class=\"moment1\"} 0.02"));
  EXPECT_TRUE(
      shows("coat_job_quant_saturated_ratio{format=\"e4m3\",job=\"a\",tensor_class=\"moment1\"} 0.25"));
  EXPECT_TRUE(
      shows("coat_job_quant_underflow_ratio{format=\"e4m3\",job=\"a\",tensor_class=\"moment1\"} 0.125"));
  EXPECT_TRUE(shows("coat_job_quant_expansion_exponent{job=\"a\",tensor_class=\"moment1\"} 1.5"));
  EXPECT_TRUE(
      shows("coat_job_quant_expansion_below_ratio{job=\"a\",k=\"1.5\",tensor_class=\"moment1\"} 0.625"));
  EXPECT_TRUE(shows("coat_job_last_checkpoint_timestamp_seconds{job=\"a\"} 1000"));
  EXPECT_TRUE(shows("coat_job_checkpoint_seconds{job=\"a\"} 0.5"));
}

TEST_F(JobMetricsTest, CountersFollowTheJobAndNeverFall) {
  job_metrics_.observe({"a", 1, false, at_step(3, 300)});
  job_metrics_.observe({"a", 1, false, at_step(4, 400)});
  EXPECT_TRUE(shows("coat_job_tokens_total{job=\"a\"} 400"));
  job_metrics_.observe({"a", 2, false, at_step(3, 300)});  // a new attempt went on from an older checkpoint
  EXPECT_TRUE(shows("coat_job_step{job=\"a\"} 3"));
  EXPECT_TRUE(shows("coat_job_tokens_total{job=\"a\"} 400"));
  job_metrics_.observe({"a", 1, true, at_step(4, 400)});  // the old attempt is still there, ended
  EXPECT_TRUE(shows("coat_job_step{job=\"a\"} 3"));
  job_metrics_.observe({"a", 2, false, at_step(5, 500)});
  EXPECT_TRUE(shows("coat_job_tokens_total{job=\"a\"} 500"));
}

TEST_F(JobMetricsTest, SeriesGoAWhileAfterTheEnd) {
  const std::size_t base = metrics_.series_count();
  for (int round = 0; round < 3; ++round) {
    job_metrics_.observe({"a", 1, false, at_step(3, 300)});
    job_metrics_.observe({"a", 1, true, at_step(4, 400)});
    EXPECT_TRUE(shows("coat_job_step{job=\"a\"} 4")) << "the last figures count";
    clock_.advance(std::chrono::seconds(59));
    job_metrics_.expire();
    EXPECT_GT(metrics_.series_count(), base);
    clock_.advance(std::chrono::seconds(1));
    job_metrics_.expire();
    EXPECT_EQ(metrics_.series_count(), base);
  }
}

TEST_F(JobMetricsTest, ALiveJobStays) {
  for (int i = 0; i < 10; ++i) {
    job_metrics_.observe({"a", 1, false, at_step(3, 300)});
    clock_.advance(std::chrono::seconds(59));
    job_metrics_.expire();
  }
  EXPECT_TRUE(shows("coat_job_step{job=\"a\"} 3"));
}

TEST_F(JobMetricsTest, NonFiniteFiguresAreShownAsSuch) {
  TrainingState state = at_step(1, 1);
  state.step->loss = std::numeric_limits<double>::quiet_NaN();
  state.step->grad_norm = std::numeric_limits<double>::infinity();
  job_metrics_.observe({"a", 1, false, state});
  EXPECT_TRUE(shows("coat_job_loss{job=\"a\"} Nan") || shows("coat_job_loss{job=\"a\"} NaN"));
  EXPECT_TRUE(shows("coat_job_grad_norm{job=\"a\"} +Inf"));
}

}  // namespace
}  // namespace coat::agent
