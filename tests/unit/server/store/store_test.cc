// What every Store must do. A new implementation joins by a line in INSTANTIATE_TEST_SUITE_P.
#include "server/store/store.h"

#include <future>
#include <memory>

#include <gtest/gtest.h>

#include "server/store/sqlite_store.h"
#include "tests/support/temporary_folder.h"

namespace coat::store {
namespace {

using Factory = std::unique_ptr<Store> (*)(const std::filesystem::path& folder);

std::unique_ptr<Store> open_sqlite(const std::filesystem::path& folder) {
  SqliteOptions options;
  options.file = folder / "coat.db";
  return std::make_unique<SqliteStore>(options, real_clock());
}

JobRow job(const std::string& id, std::int64_t order, v1::Job::State state = v1::Job::PENDING) {
  JobRow row;
  row.order = order;
  row.job.set_name("jobs/" + id);
  row.job.mutable_spec()->set_name(id.substr(0, id.rfind('-')));
  row.job.set_state(state);
  row.job.set_last_sequence(order);
  return row;
}

AttemptRow attempt(const std::string& job, int number, std::int64_t epoch, v1::Attempt::State state) {
  AttemptRow row;
  row.job = job;
  row.number = number;
  row.attempt.set_name(job + "/attempts/" + std::to_string(number));
  row.attempt.set_epoch(epoch);
  row.attempt.set_state(state);
  return row;
}

EventRow event(std::int64_t sequence, const std::string& job) {
  EventRow row;
  row.event.set_sequence(sequence);
  row.event.set_object(job.empty() ? "workers/w" : job);
  row.job = job;
  return row;
}

std::vector<std::string> names(const JobPage& page) {
  std::vector<std::string> names;
  for (const JobRow& row : page.jobs) names.push_back(row.job.name().substr(5));
  return names;
}

class StoreTest : public ::testing::TestWithParam<Factory> {
 protected:
  StoreTest() : store_(GetParam()(folder_.path())) {}

  std::string commit(Batch batch) {
    std::promise<std::string> done;
    store_->commit(std::move(batch), [&done](const std::string& error) { done.set_value(error); });
    return done.get_future().get();
  }
  void reopen() {
    store_.reset();
    store_ = GetParam()(folder_.path());
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreTest, EmptyAtFirst) {
  const LoadedState state = store_->load();
  EXPECT_TRUE(state.live_jobs.empty());
  EXPECT_EQ(state.last_sequence, 0);
  EXPECT_EQ(state.epoch, 0);
  EXPECT_FALSE(store_->find_job("jobs/none"));
  EXPECT_TRUE(store_->list_jobs({}).jobs.empty());
}

TEST_P(StoreTest, EverythingComesBackAfterReopening) {
  Batch batch;
  JobRow row = job("a-1", 1);
  row.estimate.emplace().mutable_memory()->set_total_bytes(77);
  row.not_before_ms = 1234;
  row.job.mutable_pending_status()->set_message("is not kept");
  batch.jobs = {row, job("b-1", 2, v1::Job::SUCCEEDED)};
  AttemptRow run = attempt("jobs/a-1", 1, 9, v1::Attempt::RUNNING);
  run.report_sequence = 5;
  run.log_bytes = 10;
  run.metrics_bytes = 20;
  batch.attempts = {run, attempt("jobs/b-1", 1, 8, v1::Attempt::SUCCEEDED)};
  batch.workers.emplace_back().worker.set_name("workers/w");
  batch.events = {event(1, "jobs/a-1"), event(2, "jobs/b-1"), event(3, "")};
  batch.requests = {{"id-1", "spec", "jobs/a-1", 99}};
  batch.epoch = 9;
  ASSERT_EQ(commit(batch), "");
  reopen();

  const LoadedState state = store_->load();
  ASSERT_EQ(state.live_jobs.size(), 1U);
  EXPECT_EQ(state.live_jobs[0].job.name(), "jobs/a-1");
  EXPECT_EQ(state.live_jobs[0].order, 1);
  EXPECT_EQ(state.live_jobs[0].not_before_ms, 1234);
  EXPECT_FALSE(state.live_jobs[0].job.has_pending_status());
  ASSERT_TRUE(state.live_jobs[0].estimate);
  EXPECT_EQ(state.live_jobs[0].estimate->memory().total_bytes(), 77);
  ASSERT_EQ(state.attempts.size(), 1U);
  EXPECT_EQ(state.attempts[0].report_sequence, 5);
  EXPECT_EQ(state.attempts[0].log_bytes, 10);
  EXPECT_EQ(state.attempts[0].metrics_bytes, 20);
  EXPECT_EQ(state.attempts[0].attempt.epoch(), 9);
  ASSERT_EQ(state.workers.size(), 1U);
  ASSERT_EQ(state.requests.size(), 1U);
  EXPECT_EQ(state.requests[0].spec, "spec");
  EXPECT_EQ(state.last_sequence, 3);
  EXPECT_EQ(state.epoch, 9);
  EXPECT_EQ(state.jobs_by_state.at(v1::Job::SUCCEEDED), 1);
  EXPECT_EQ(state.jobs_by_state.at(v1::Job::PENDING), 1);
  ASSERT_TRUE(store_->find_job("jobs/b-1"));
  EXPECT_EQ(store_->find_attempts("jobs/b-1").size(), 1U);
}

TEST_P(StoreTest, ATerminalJobIsWrittenOnce) {
  ASSERT_EQ(commit({.jobs = {job("a-1", 1, v1::Job::SUCCEEDED)}, .events = {event(1, "jobs/a-1")}}), "");
  const std::string error = commit({.jobs = {job("b-1", 2), job("a-1", 1, v1::Job::FAILED)}});
  EXPECT_NE(error.find("jobs/a-1"), std::string::npos) << error;
  EXPECT_FALSE(store_->find_job("jobs/b-1")) << "a failed batch must change nothing";
  EXPECT_EQ(store_->find_job("jobs/a-1")->job.state(), v1::Job::SUCCEEDED);
}

TEST_P(StoreTest, ATerminalAttemptIsWrittenOnceAndItsEpochStays) {
  ASSERT_EQ(commit({.jobs = {job("a-1", 1)}, .attempts = {attempt("jobs/a-1", 1, 4, v1::Attempt::FENCED)}}),
            "");
  EXPECT_NE(commit({.attempts = {attempt("jobs/a-1", 1, 4, v1::Attempt::SUCCEEDED)}}), "");
  EXPECT_NE(commit({.attempts = {attempt("jobs/a-1", 1, 5, v1::Attempt::FENCED)}}), "");
  EXPECT_EQ(store_->find_attempts("jobs/a-1").at(0).attempt.state(), v1::Attempt::FENCED);
}

TEST_P(StoreTest, CountersNeverFall) {
  ASSERT_EQ(commit({.events = {event(7, "jobs/a-1")}, .epoch = 5}), "");
  ASSERT_EQ(commit({.epoch = 3}), "");
  const LoadedState state = store_->load();
  EXPECT_EQ(state.last_sequence, 7);
  EXPECT_EQ(state.epoch, 5);
}

TEST_P(StoreTest, DoneRunsInTheOrderOfTheCommits) {
  std::promise<void> all;
  std::vector<int> order;
  for (int i = 0; i < 200; ++i) {
    Batch batch;
    if (i % 3 != 0) batch.jobs = {job("j-" + std::to_string(i), i + 1)};
    store_->commit(std::move(batch), [&, i](const std::string& error) {
      EXPECT_EQ(error, "");
      order.push_back(i);
      if (i == 199) all.set_value();
    });
  }
  all.get_future().wait();
  ASSERT_EQ(order.size(), 200U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(store_->list_jobs({.limit = 1000}).jobs.size(), 133U);
}

TEST_P(StoreTest, ListPagesNewestFirst) {
  Batch batch;
  for (int i = 1; i <= 7; ++i) batch.jobs.push_back(job("j-" + std::to_string(i), i));
  ASSERT_EQ(commit(batch), "");
  const JobPage first = store_->list_jobs({.limit = 3});
  EXPECT_EQ(names(first), (std::vector<std::string>{"j-7", "j-6", "j-5"}));
  EXPECT_TRUE(first.more);
  const JobPage second = store_->list_jobs({.before_order = first.jobs.back().order, .limit = 4});
  EXPECT_EQ(names(second), (std::vector<std::string>{"j-4", "j-3", "j-2", "j-1"}));
  EXPECT_FALSE(second.more);
  EXPECT_EQ(store_->list_jobs({.limit = 7}).more, false);
}

TEST_P(StoreTest, APageIsBoundedInBytesButNeverEmpty) {
  Batch batch;
  for (int i = 1; i <= 4; ++i) {
    JobRow row = job("j-" + std::to_string(i), i);
    row.job.mutable_summary()->set_sample(std::string(1000, 'x'));
    batch.jobs.push_back(row);
  }
  ASSERT_EQ(commit(batch), "");
  const JobPage page = store_->list_jobs({.limit = 10, .max_bytes = 1500});
  EXPECT_EQ(page.jobs.size(), 2U);
  EXPECT_TRUE(page.more);
  EXPECT_EQ(store_->list_jobs({.limit = 10, .max_bytes = 1}).jobs.size(), 1U);
}

TEST_P(StoreTest, ListFilters) {
  JobRow a = job("alpha-1", 1);
  (*a.job.mutable_spec()->mutable_labels())["team"] = "x";
  (*a.job.mutable_spec()->mutable_labels())["tier"] = "1";
  JobRow b = job("alpine-1", 2, v1::Job::FAILED);
  (*b.job.mutable_spec()->mutable_labels())["team"] = "x";
  ASSERT_EQ(commit({.jobs = {a, b, job("beta-1", 3, v1::Job::RUNNING)}}), "");
  EXPECT_EQ(names(store_->list_jobs({.name_prefix = "alp"})),
            (std::vector<std::string>{"alpine-1", "alpha-1"}));
  EXPECT_EQ(names(store_->list_jobs({.name_prefix = "%"})), (std::vector<std::string>{}));
  EXPECT_EQ(names(store_->list_jobs({.states = {v1::Job::FAILED, v1::Job::RUNNING}})),
            (std::vector<std::string>{"beta-1", "alpine-1"}));
  EXPECT_EQ(names(store_->list_jobs({.labels = {{"team", "x"}}})),
            (std::vector<std::string>{"alpine-1", "alpha-1"}));
  EXPECT_EQ(names(store_->list_jobs({.labels = {{"team", "x"}, {"tier", "1"}}})),
            (std::vector<std::string>{"alpha-1"}));
  EXPECT_EQ(names(store_->list_jobs({.states = {v1::Job::PENDING}, .name_prefix = "alpine"})),
            (std::vector<std::string>{}));
}

TEST_P(StoreTest, EventsByPageJobAndWithoutThoseOfWorkers) {
  ASSERT_EQ(
      commit({.events = {event(1, "jobs/a-1"), event(2, "jobs/b-1"), event(3, ""), event(4, "jobs/a-1")}}),
      "");
  const auto sequences = [&](const EventQuery& query) {
    std::vector<std::int64_t> found;
    for (const EventRow& row : store_->list_events(query)) found.push_back(row.event.sequence());
    return found;
  };
  EXPECT_EQ(sequences({}), (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(sequences({.after_sequence = 1}), (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(sequences({.after_sequence = 0, .limit = 2}), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(sequences({.after_sequence = 1, .job = "jobs/a-1"}), (std::vector<std::int64_t>{4}));
}

TEST_P(StoreTest, Pruning) {
  ASSERT_EQ(commit({.events = {event(1, "jobs/a-1"), event(2, "jobs/a-1")},
                    .requests = {{"old", "s", "jobs/a-1", 10}, {"new", "s", "jobs/a-1", 20}}}),
            "");
  ASSERT_EQ(commit({.prune_requests_before_ms = 15, .prune_events_through = 1}), "");
  const LoadedState state = store_->load();
  ASSERT_EQ(state.requests.size(), 1U);
  EXPECT_EQ(state.requests[0].id, "new");
  EXPECT_EQ(state.pruned_through, 1);
  EXPECT_EQ(state.last_sequence, 2);
  EXPECT_EQ(store_->list_events({}).size(), 1U);
}

TEST_P(StoreTest, WhatWasQueuedIsWrittenBeforeTheStoreGoes) {
  for (int i = 1; i <= 50; ++i) store_->commit({.jobs = {job("j-" + std::to_string(i), i)}}, nullptr);
  reopen();
  EXPECT_EQ(store_->load().live_jobs.size(), 50U);
}

INSTANTIATE_TEST_SUITE_P(Sqlite, StoreTest, ::testing::Values(&open_sqlite));

}  // namespace
}  // namespace coat::store
