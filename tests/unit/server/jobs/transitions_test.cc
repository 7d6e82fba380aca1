#include "server/jobs/transitions.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "server/jobs/names.h"
#include "server/store/store.h"

namespace coat::jobs {
namespace {

TEST(Transitions, ATerminalStateIsNeverLeftAndNoneIsEnteredTwice) {
  for (int from = v1::Job::STATE_UNSPECIFIED; from <= v1::Job::State_MAX; ++from) {
    for (int to = v1::Job::STATE_UNSPECIFIED; to <= v1::Job::State_MAX; ++to) {
      const auto a = static_cast<v1::Job::State>(from);
      const auto b = static_cast<v1::Job::State>(to);
      if (store::is_terminal(a) || a == b || b == v1::Job::STATE_UNSPECIFIED) {
        EXPECT_FALSE(may_follow(a, b));
      }
    }
  }
  for (int from = v1::Attempt::STATE_UNSPECIFIED; from <= v1::Attempt::State_MAX; ++from) {
    for (int to = v1::Attempt::STATE_UNSPECIFIED; to <= v1::Attempt::State_MAX; ++to) {
      const auto a = static_cast<v1::Attempt::State>(from);
      const auto b = static_cast<v1::Attempt::State>(to);
      if (store::is_terminal(a) || a == b || b == v1::Attempt::ASSIGNED) {
        EXPECT_FALSE(may_follow(a, b));
      }
    }
  }
}

TEST(Transitions, OnlyALostAttemptIsFenced) {
  for (int from = v1::Attempt::STATE_UNSPECIFIED; from <= v1::Attempt::State_MAX; ++from) {
    EXPECT_EQ(may_follow(static_cast<v1::Attempt::State>(from), v1::Attempt::FENCED),
              from == v1::Attempt::LOST);
  }
}

TEST(Transitions, MoveRefusesWhatTheTableLacks) {
  v1::Job job;
  job.set_state(v1::Job::SUCCEEDED);
  EXPECT_THROW(move(job, v1::Job::RUNNING), std::logic_error);
  EXPECT_EQ(job.state(), v1::Job::SUCCEEDED);
}

TEST(Names, Jobs) {
  EXPECT_EQ(parse_job_name("jobs/a-1"), "jobs/a-1");
  EXPECT_EQ(parse_job_name("a-1"), "jobs/a-1");
  for (const char* bad : {"", "jobs/", "jobs/A", "a/b", "-a", "a-", "jobs/jobs/a", "a b", "../a"}) {
    EXPECT_FALSE(parse_job_name(bad)) << bad;
  }
  EXPECT_FALSE(parse_job_name(std::string(64, 'a')));
}

TEST(Names, Attempts) {
  const auto full = parse_attempt_name("jobs/a-1/attempts/12");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->job, "jobs/a-1");
  EXPECT_EQ(full->number, 12);
  EXPECT_EQ(parse_attempt_name("a-1")->number, 0);
  EXPECT_EQ(attempt_name("jobs/a-1", 12), "jobs/a-1/attempts/12");
  for (const char* bad : {"", "a/attempts/", "a/attempts/0", "a/attempts/-1", "a/attempts/1x",
                          "a/attempts/01", "a/attempts/99999999999", "/attempts/1"}) {
    EXPECT_FALSE(parse_attempt_name(bad)) << bad;
  }
}

TEST(Names, NewOnes) {
  std::uint64_t next = 0;
  const auto random = [&next] { return next += 0x9E3779B97F4A7C15ULL; };
  const std::string name = new_job_name("quick", random);
  EXPECT_EQ(name.size(), std::string("jobs/quick-12345").size());
  EXPECT_TRUE(parse_job_name(name)) << name;
  EXPECT_NE(name, new_job_name("quick", random));
  EXPECT_EQ(new_uid(random).size(), 32U);
}

TEST(Names, Workers) {
  EXPECT_TRUE(is_worker_id("gpu-7"));
  EXPECT_FALSE(is_worker_id("Gpu"));
  EXPECT_FALSE(is_worker_id(""));
  EXPECT_FALSE(is_worker_id("a/b"));
}

}  // namespace
}  // namespace coat::jobs
