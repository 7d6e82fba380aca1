#include <cmath>

#include <gtest/gtest.h>

#include "worker/core/base/error.h"
#include "worker/core/optim/adamw.h"

namespace coat {
namespace {

Schedule make(const char* kind, std::int64_t warmup, std::int64_t total) {
  return {.kind = kind, .peak = 2.0, .final_fraction = 0.1, .warmup_steps = warmup, .total_steps = total};
}

TEST(ScheduleTest, WarmUpIsLinearAndReachesThePeak) {
  for (const char* kind : {"cosine", "linear", "constant"}) {
    const Schedule schedule = make(kind, 10, 100);
    EXPECT_DOUBLE_EQ(schedule.learning_rate(1), 0.2) << kind;
    EXPECT_DOUBLE_EQ(schedule.learning_rate(5), 1.0) << kind;
    EXPECT_DOUBLE_EQ(schedule.learning_rate(10), 2.0) << kind;
  }
}

TEST(ScheduleTest, EndsAtTheFinalFraction) {
  EXPECT_NEAR(make("cosine", 10, 100).learning_rate(100), 0.2, 1e-12);
  EXPECT_NEAR(make("linear", 10, 100).learning_rate(100), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(make("constant", 10, 100).learning_rate(100), 2.0);
  // Beyond the end it stays there.
  EXPECT_NEAR(make("cosine", 10, 100).learning_rate(150), 0.2, 1e-12);
  EXPECT_NEAR(make("linear", 0, 100).learning_rate(101), 0.2, 1e-12);
}

TEST(ScheduleTest, HalfWay) {
  EXPECT_NEAR(make("cosine", 10, 110).learning_rate(60), 1.1, 1e-12);
  EXPECT_NEAR(make("linear", 10, 110).learning_rate(60), 1.1, 1e-12);
  EXPECT_NEAR(make("cosine", 0, 100).learning_rate(25), 0.2 + 1.8 * 0.5 * (1 + std::sqrt(0.5)), 1e-12);
}

TEST(ScheduleTest, FallsAfterTheWarmUp) {
  for (const char* kind : {"cosine", "linear"}) {
    const Schedule schedule = make(kind, 3, 50);
    for (std::int64_t step = 4; step <= 50; ++step) {
      ASSERT_LT(schedule.learning_rate(step), schedule.learning_rate(step - 1)) << kind << " " << step;
    }
  }
}

TEST(ScheduleTest, AWarmUpOfTheWholeRunEndsAtThePeak) {
  EXPECT_DOUBLE_EQ(make("cosine", 20, 20).learning_rate(20), 2.0);
  EXPECT_DOUBLE_EQ(make("linear", 1, 1).learning_rate(1), 2.0);
}

TEST(ScheduleTest, RefusesAnUnknownKind) {
  try {
    make("step", 0, 10).learning_rate(1);
    FAIL() << "accepted";
  } catch (const SpecError& error) {
    EXPECT_EQ(error.field, "optimizer.schedule");
    EXPECT_NE(error.fix.find("cosine, linear, constant"), std::string::npos);
  }
}

}  // namespace
}  // namespace coat
