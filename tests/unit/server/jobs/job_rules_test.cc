#include "server/jobs/job_rules.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "server/jobs/retry.h"
#include "server/jobs/transitions.h"

namespace coat::jobs {
namespace {

constexpr char kJob[] = "jobs/a-xxxxx";
const Context kContext{SystemTime(std::chrono::seconds(1000)), "test"};

JobRecord record(v1::Job::State state, std::optional<v1::Attempt::State> attempt, bool cancel = false) {
  JobRecord record;
  record.row.order = 1;
  record.row.job.set_name(kJob);
  record.row.job.set_state(state);
  record.row.job.mutable_spec()->mutable_retry()->set_max_retries(2);
  record.row.job.set_cancel_requested(cancel);
  if (attempt) {
    store::AttemptRow row;
    row.job = kJob;
    row.number = 1;
    row.attempt.set_name(std::string(kJob) + "/attempts/1");
    row.attempt.set_epoch(10);
    row.attempt.set_state(*attempt);
    row.attempt.set_worker("workers/w");
    record.attempts.push_back(row);
    record.row.job.set_attempt_count(1);
  }
  return record;
}

Reported report(v1::Attempt::State state, v1::ExitStatus::Reason reason = v1::ExitStatus::REASON_UNSPECIFIED,
                std::int64_t sequence = 1, std::int64_t epoch = 10) {
  v1::AttemptReport report;
  report.set_attempt(std::string(kJob) + "/attempts/1");
  report.set_epoch(epoch);
  report.set_state(state);
  report.set_report_sequence(sequence);
  if (reason != v1::ExitStatus::REASON_UNSPECIFIED) report.mutable_exit()->set_reason(reason);
  return {report};
}

v1::Job::State job_state(const Outcome& outcome) { return outcome.record.row.job.state(); }
v1::Attempt::State attempt_state(const Outcome& outcome) {
  return outcome.record.attempts.back().attempt.state();
}

// Every combination that can exist of a job's state and its last attempt's.
std::vector<JobRecord> every_record() {
  std::vector<JobRecord> records = {record(v1::Job::PENDING, std::nullopt),
                                    record(v1::Job::CANCELLED, std::nullopt, true),
                                    record(v1::Job::FAILED, std::nullopt)};
  for (const auto live : {v1::Attempt::ASSIGNED, v1::Attempt::RUNNING, v1::Attempt::STOPPING}) {
    records.push_back(record(v1::Job::RUNNING, live));
    records.push_back(record(v1::Job::CANCELLING, live, true));
  }
  records.push_back(record(v1::Job::PENDING, v1::Attempt::LOST));
  records.push_back(record(v1::Job::CANCELLING, v1::Attempt::LOST, true));
  for (const auto ended : {v1::Attempt::FAILED, v1::Attempt::CANCELLED, v1::Attempt::FENCED}) {
    records.push_back(record(v1::Job::PENDING, ended));
    records.push_back(record(v1::Job::FAILED, ended));
    records.push_back(record(v1::Job::CANCELLED, ended, true));
  }
  records.push_back(record(v1::Job::SUCCEEDED, v1::Attempt::SUCCEEDED));
  return records;
}

std::vector<Happening> every_happening() {
  std::vector<Happening> happenings = {Evaluated{},        EvaluationFailed{}, Assigned{"workers/w", {0}, 11},
                                       WorkerWentSilent{}, AttemptMissing{},   FenceDue{},
                                       CancelRequested{}};
  for (int state = v1::Attempt::STATE_UNSPECIFIED; state <= v1::Attempt::FENCED; ++state) {
    for (int reason = v1::ExitStatus::REASON_UNSPECIFIED; reason <= v1::ExitStatus::CANCELLED; ++reason) {
      happenings.push_back(
          report(static_cast<v1::Attempt::State>(state), static_cast<v1::ExitStatus::Reason>(reason)));
    }
    happenings.push_back(
        report(static_cast<v1::Attempt::State>(state), v1::ExitStatus::REASON_UNSPECIFIED, 0));
    happenings.push_back(
        report(static_cast<v1::Attempt::State>(state), v1::ExitStatus::REASON_UNSPECIFIED, 1, 9));
  }
  return happenings;
}

bool reachable(v1::Job::State from, v1::Job::State to) {
  if (from == to || may_follow(from, to)) return true;
  // A lost attempt that comes back and ends in one report takes two steps.
  return from == v1::Job::PENDING && may_follow(v1::Job::RUNNING, to);
}

bool reachable(v1::Attempt::State from, v1::Attempt::State to) {
  if (from == to || may_follow(from, to)) return true;
  return from == v1::Attempt::LOST && may_follow(v1::Attempt::RUNNING, to);
}

TEST(JobRules, EveryStateWithEveryHappeningKeepsTheInvariants) {
  int checked = 0;
  for (const JobRecord& before : every_record()) {
    for (const Happening& happening : every_happening()) {
      const v1::Job::State from = before.row.job.state();
      SCOPED_TRACE(v1::Job::State_Name(from) + " with happening " + std::to_string(happening.index()));
      const Outcome outcome =
          apply(before, happening, kContext);  // throws where a transition is not in the table
      const JobRecord& after = outcome.record;
      const v1::Job::State to = after.row.job.state();
      ++checked;
      EXPECT_TRUE(reachable(from, to)) << v1::Job::State_Name(to);
      if (store::is_terminal(from)) {
        EXPECT_FALSE(outcome.changed()) << "a terminal job is written once";
      }
      if (from != to) {
        EXPECT_TRUE(outcome.job_changed);
        const auto last = std::find_if(outcome.events.rbegin(), outcome.events.rend(),
                                       [](const v1::Event& event) { return event.object() == kJob; });
        ASSERT_NE(last, outcome.events.rend()) << "every change is an event";
        EXPECT_EQ(last->to_state(), v1::Job::State_Name(to));
      }
      for (std::size_t i = 0; i < before.attempts.size(); ++i) {
        EXPECT_TRUE(reachable(before.attempts[i].attempt.state(), after.attempts.at(i).attempt.state()));
        EXPECT_EQ(before.attempts[i].attempt.epoch(), after.attempts[i].attempt.epoch());
      }
      for (const v1::Event& event : outcome.events) {
        EXPECT_EQ(event.actor(), "test");
        EXPECT_FALSE(event.verb().empty());
      }
      const store::AttemptRow* current = after.current();
      if (to == v1::Job::RUNNING || to == v1::Job::CANCELLING) {
        EXPECT_NE(current, nullptr);
      }
      if (store::is_terminal(to)) {
        EXPECT_EQ(current, nullptr) << "an ended job holds no devices";
        if (from != to) {
          EXPECT_TRUE(after.row.job.has_end_time());
        }
      }
      if (current && to == v1::Job::PENDING) {
        EXPECT_EQ(current->attempt.state(), v1::Attempt::LOST);
      }
      EXPECT_EQ(static_cast<std::size_t>(after.row.job.attempt_count()), after.attempts.size());
      EXPECT_LE(after.row.job.retries_used(), 2);
    }
  }
  EXPECT_EQ(checked, 21 * (7 + 9 * 17));
}

TEST(JobRules, ACreatedJobIsPending) {
  v1::JobSpec spec;
  spec.set_name("a");
  const Outcome outcome = create_job(kJob, "uid", spec, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::PENDING);
  EXPECT_EQ(outcome.record.row.job.create_time().seconds(), 1000);
  ASSERT_EQ(outcome.events.size(), 1U);
  EXPECT_EQ(outcome.events[0].verb(), "created");
}

TEST(JobRules, TheUsualLife) {
  Outcome outcome =
      apply(record(v1::Job::PENDING, std::nullopt), Assigned{"workers/w", {0, 1}, 10}, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::RUNNING);
  EXPECT_EQ(attempt_state(outcome), v1::Attempt::ASSIGNED);
  EXPECT_EQ(outcome.record.attempts[0].attempt.devices_size(), 2);
  EXPECT_EQ(outcome.events.size(), 2U);
  outcome = apply(outcome.record, report(v1::Attempt::RUNNING), kContext);
  EXPECT_EQ(attempt_state(outcome), v1::Attempt::RUNNING);
  EXPECT_TRUE(outcome.record.row.job.has_start_time());
  EXPECT_TRUE(outcome.acknowledge);
  Reported end = report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 2);
  end.report.mutable_summary()->set_last_loss(1.5);
  end.report.set_log_bytes(7);
  outcome = apply(outcome.record, end, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::SUCCEEDED);
  EXPECT_EQ(outcome.record.row.job.exit().reason(), v1::ExitStatus::DONE);
  EXPECT_EQ(outcome.record.row.job.summary().last_loss(), 1.5);
  EXPECT_EQ(outcome.record.attempts[0].log_bytes, 7);
  EXPECT_EQ(outcome.ended, v1::ExitStatus::DONE);
}

TEST(JobRules, RetryTable) {
  struct Row {
    v1::ExitStatus::Reason reason;
    v1::Job::State state;
    int retries;
    bool delayed;
  };
  const Row rows[] = {
      {v1::ExitStatus::BAD_SPEC, v1::Job::FAILED, 0, false},
      {v1::ExitStatus::DATA_ERROR, v1::Job::FAILED, 0, false},
      {v1::ExitStatus::CHECKPOINT_ERROR, v1::Job::FAILED, 0, false},
      {v1::ExitStatus::OUT_OF_DEVICE_MEMORY, v1::Job::FAILED, 0, false},
      {v1::ExitStatus::NON_FINITE_LOSS, v1::Job::FAILED, 0, false},
      {v1::ExitStatus::INTERNAL, v1::Job::PENDING, 1, true},
      {v1::ExitStatus::COLLECTIVE_FAILED, v1::Job::PENDING, 1, true},
      {v1::ExitStatus::DEVICE_FAULT, v1::Job::PENDING, 1, true},
      {v1::ExitStatus::KILLED, v1::Job::PENDING, 1, true},
      {v1::ExitStatus::LAUNCH_FAILED, v1::Job::PENDING, 1, true},
      {v1::ExitStatus::STOPPED, v1::Job::PENDING, 0, true},
      {v1::ExitStatus::WORKER_LOST, v1::Job::PENDING, 0, false},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(v1::ExitStatus::Reason_Name(row.reason));
    const Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::RUNNING),
                                  report(v1::Attempt::FAILED, row.reason), kContext);
    EXPECT_EQ(job_state(outcome), row.state);
    EXPECT_EQ(outcome.record.row.job.retries_used(), row.retries);
    EXPECT_EQ(outcome.retry_counted, row.retries == 1);
    EXPECT_EQ(outcome.record.row.not_before_ms > 0, row.delayed);
    EXPECT_EQ(outcome.record.row.job.exit().reason(),
              row.state == v1::Job::FAILED ? row.reason : v1::ExitStatus::REASON_UNSPECIFIED);
  }
}

TEST(JobRules, RetriesEndAtTheLimit) {
  JobRecord before = record(v1::Job::RUNNING, v1::Attempt::RUNNING);
  before.row.job.set_retries_used(2);
  const Outcome outcome = apply(before, report(v1::Attempt::FAILED, v1::ExitStatus::INTERNAL), kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::FAILED);
  EXPECT_NE(outcome.events.back().message().find("2 of 2 retries used"), std::string::npos);
}

TEST(JobRules, BackOffDoublesUpToFiveMinutes) {
  using std::chrono::milliseconds;
  EXPECT_EQ(retry_delay(v1::ExitStatus::INTERNAL, 1), milliseconds(2000));
  EXPECT_EQ(retry_delay(v1::ExitStatus::INTERNAL, 2), milliseconds(4000));
  EXPECT_EQ(retry_delay(v1::ExitStatus::INTERNAL, 50), milliseconds(300000));
  EXPECT_EQ(retry_delay(v1::ExitStatus::WORKER_LOST, 0), milliseconds(0));
}

TEST(JobRules, LostAndBack) {
  Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::RUNNING), WorkerWentSilent{}, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::PENDING);
  EXPECT_EQ(attempt_state(outcome), v1::Attempt::LOST);
  outcome = apply(outcome.record, report(v1::Attempt::RUNNING), kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::RUNNING);
  EXPECT_EQ(attempt_state(outcome), v1::Attempt::RUNNING);
  EXPECT_EQ(outcome.record.row.job.retries_used(), 0);
}

TEST(JobRules, LostAndBackWithItsEnd) {
  Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::RUNNING), WorkerWentSilent{}, kContext);
  outcome = apply(outcome.record, report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE), kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::SUCCEEDED);
}

TEST(JobRules, AFencedAttemptCannotReportSuccessLater) {
  Outcome outcome = apply(record(v1::Job::PENDING, v1::Attempt::LOST), FenceDue{}, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::PENDING);
  EXPECT_EQ(attempt_state(outcome), v1::Attempt::FENCED);
  EXPECT_EQ(outcome.record.row.job.retries_used(), 0);
  const Outcome late = apply(outcome.record, report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE), kContext);
  EXPECT_TRUE(late.stale);
  EXPECT_FALSE(late.changed());
  EXPECT_FALSE(late.acknowledge);
  const Outcome again = apply(outcome.record, Assigned{"workers/v", {0}, 12}, kContext);
  EXPECT_EQ(again.record.attempts.back().attempt.epoch(), 12);
  EXPECT_EQ(again.record.attempts.size(), 2U);
}

TEST(JobRules, AStaleEpochIsRefused) {
  const Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::RUNNING),
                                report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 1, 9), kContext);
  EXPECT_TRUE(outcome.stale);
  EXPECT_FALSE(outcome.changed());
}

TEST(JobRules, ARepeatedReportChangesNothingAndIsAcknowledged) {
  const Outcome first =
      apply(record(v1::Job::RUNNING, v1::Attempt::ASSIGNED), report(v1::Attempt::RUNNING), kContext);
  const Outcome second = apply(first.record, report(v1::Attempt::RUNNING), kContext);
  EXPECT_FALSE(second.changed());
  EXPECT_TRUE(second.acknowledge);
  const Outcome end = apply(first.record, report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 2), kContext);
  const Outcome repeat = apply(end.record, report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 2), kContext);
  EXPECT_FALSE(repeat.changed());
  EXPECT_TRUE(repeat.acknowledge);
}

TEST(JobRules, ProgressAloneIsNotWritten) {
  Reported progress = report(v1::Attempt::RUNNING, v1::ExitStatus::REASON_UNSPECIFIED, 0);
  progress.report.mutable_progress()->set_step(5);
  const Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::RUNNING), progress, kContext);
  EXPECT_FALSE(outcome.changed());
  EXPECT_TRUE(outcome.progress_changed);
  EXPECT_FALSE(outcome.acknowledge);
  EXPECT_EQ(outcome.record.row.job.progress().step(), 5);
}

TEST(JobRules, TheTrainerKnowsWhereItWentOn) {
  Reported begun = report(v1::Attempt::RUNNING, v1::ExitStatus::REASON_UNSPECIFIED, 0);
  begun.report.set_resume_step(40);
  const Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::RUNNING), begun, kContext);
  EXPECT_TRUE(outcome.changed());
  EXPECT_EQ(outcome.record.attempts.back().attempt.resume_step(), 40);
  EXPECT_FALSE(apply(outcome.record, begun, kContext).changed());
  begun.report.set_resume_step(0);
  EXPECT_EQ(apply(outcome.record, begun, kContext).record.attempts.back().attempt.resume_step(), 0);
  begun.report.clear_resume_step();
  EXPECT_FALSE(apply(outcome.record, begun, kContext).changed());
}

TEST(JobRules, CancelInEachState) {
  EXPECT_EQ(job_state(apply(record(v1::Job::PENDING, std::nullopt), CancelRequested{}, kContext)),
            v1::Job::CANCELLED);
  for (const auto live : {v1::Attempt::ASSIGNED, v1::Attempt::RUNNING, v1::Attempt::STOPPING}) {
    const Outcome outcome = apply(record(v1::Job::RUNNING, live), CancelRequested{}, kContext);
    EXPECT_EQ(job_state(outcome), v1::Job::CANCELLING);
    EXPECT_EQ(attempt_state(outcome), v1::Attempt::STOPPING);
    EXPECT_TRUE(outcome.stop_attempt);
    const Outcome ended =
        apply(outcome.record, report(v1::Attempt::CANCELLED, v1::ExitStatus::CANCELLED), kContext);
    EXPECT_EQ(job_state(ended), v1::Job::CANCELLED);
    const Outcome failed =
        apply(outcome.record, report(v1::Attempt::FAILED, v1::ExitStatus::INTERNAL), kContext);
    EXPECT_EQ(job_state(failed), v1::Job::CANCELLED) << "a cancelled job is not tried again";
    const Outcome done =
        apply(outcome.record, report(v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE), kContext);
    EXPECT_EQ(job_state(done), v1::Job::SUCCEEDED);
  }
  const Outcome lost = apply(record(v1::Job::PENDING, v1::Attempt::LOST), CancelRequested{}, kContext);
  EXPECT_EQ(job_state(lost), v1::Job::CANCELLING) << "its devices are still held";
  EXPECT_EQ(job_state(apply(lost.record, FenceDue{}, kContext)), v1::Job::CANCELLED);
  const Outcome back = apply(lost.record, report(v1::Attempt::RUNNING), kContext);
  EXPECT_TRUE(back.stop_attempt);
  EXPECT_EQ(attempt_state(back), v1::Attempt::STOPPING);
  EXPECT_FALSE(
      apply(record(v1::Job::SUCCEEDED, v1::Attempt::SUCCEEDED), CancelRequested{}, kContext).changed());
}

TEST(JobRules, AnAttemptThatItsWorkerDoesNotKnowIsWorkerLost) {
  const Outcome outcome = apply(record(v1::Job::RUNNING, v1::Attempt::ASSIGNED), AttemptMissing{}, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::PENDING);
  EXPECT_EQ(attempt_state(outcome), v1::Attempt::FAILED);
  EXPECT_EQ(outcome.ended, v1::ExitStatus::WORKER_LOST);
  EXPECT_TRUE(apply(outcome.record, report(v1::Attempt::RUNNING), kContext).stale);
}

TEST(JobRules, ABadSpecFoundByAWorkerFailsTheJobWithoutAnAttempt) {
  EvaluationFailed failed;
  failed.exit.set_reason(v1::ExitStatus::DATA_ERROR);
  failed.exit.set_field("data.path");
  const Outcome outcome = apply(record(v1::Job::PENDING, std::nullopt), failed, kContext);
  EXPECT_EQ(job_state(outcome), v1::Job::FAILED);
  EXPECT_EQ(outcome.record.row.job.exit().field(), "data.path");
  EXPECT_TRUE(outcome.record.attempts.empty());
}

}  // namespace
}  // namespace coat::jobs
