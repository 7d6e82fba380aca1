// How attempts end: every exit code, signal and stop.
#include "worker/agent/conversions.h"

#include <cmath>
#include <csignal>
#include <limits>

#include <gtest/gtest.h>

#include "worker/protocol/exit_codes.h"

namespace coat::agent {
namespace {

ExitRecord with_code(int code) {
  ExitRecord record;
  record.exit_code = code;
  return record;
}

ExitRecord with_signal(int number) {
  ExitRecord record;
  record.signal = number;
  return record;
}

StopRequest by_user() { return {10, true, false, "the user cancelled the job"}; }
StopRequest by_service() { return {10, false, false, "the worker is shutting down"}; }

struct CodeRow {
  protocol::ExitCode code;
  v1::Attempt::State state;
  v1::ExitStatus::Reason reason;
};

class EveryExitCode : public ::testing::TestWithParam<CodeRow> {};

TEST_P(EveryExitCode, HasItsReason) {
  const int code = static_cast<int>(GetParam().code);
  const AttemptEnd end = end_of(with_code(code), std::nullopt);
  EXPECT_EQ(end.state, GetParam().state);
  EXPECT_EQ(end.exit.reason(), GetParam().reason);
  EXPECT_EQ(end.exit.exit_code(), code);
  EXPECT_FALSE(end.exit.message().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Table, EveryExitCode,
    ::testing::Values(
        CodeRow{protocol::ExitCode::kDone, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE},
        CodeRow{protocol::ExitCode::kBadSpec, v1::Attempt::FAILED, v1::ExitStatus::BAD_SPEC},
        CodeRow{protocol::ExitCode::kDataError, v1::Attempt::FAILED, v1::ExitStatus::DATA_ERROR},
        CodeRow{protocol::ExitCode::kCheckpointError, v1::Attempt::FAILED, v1::ExitStatus::CHECKPOINT_ERROR},
        CodeRow{protocol::ExitCode::kInternal, v1::Attempt::FAILED, v1::ExitStatus::INTERNAL},
        CodeRow{protocol::ExitCode::kOutOfDeviceMemory, v1::Attempt::FAILED,
                v1::ExitStatus::OUT_OF_DEVICE_MEMORY},
        CodeRow{protocol::ExitCode::kNonFiniteLoss, v1::Attempt::FAILED, v1::ExitStatus::NON_FINITE_LOSS},
        CodeRow{protocol::ExitCode::kCollectiveFailed, v1::Attempt::FAILED,
                v1::ExitStatus::COLLECTIVE_FAILED},
        CodeRow{protocol::ExitCode::kDeviceFault, v1::Attempt::FAILED, v1::ExitStatus::DEVICE_FAULT},
        CodeRow{protocol::ExitCode::kStopped, v1::Attempt::FAILED, v1::ExitStatus::STOPPED},
        CodeRow{protocol::ExitCode::kFenced, v1::Attempt::FAILED, v1::ExitStatus::CHECKPOINT_ERROR},
        CodeRow{static_cast<protocol::ExitCode>(1), v1::Attempt::FAILED, v1::ExitStatus::INTERNAL}));

TEST(AttemptEndTest, TheTrainersOwnWordsAreKept) {
  const protocol::Failure failure{65, "data.path /x is empty", "data.path", "name a file with text"};
  const AttemptEnd end = end_of(with_code(65), failure);
  EXPECT_EQ(end.exit.message(), "data.path /x is empty");
  EXPECT_EQ(end.exit.field(), "data.path");
  EXPECT_EQ(end.exit.fix(), "name a file with text");
}

TEST(AttemptEndTest, AStrangersSignalIsKilled) {
  const AttemptEnd end = end_of(with_signal(SIGSEGV), std::nullopt);
  EXPECT_EQ(end.state, v1::Attempt::FAILED);
  EXPECT_EQ(end.exit.reason(), v1::ExitStatus::KILLED);
  EXPECT_EQ(end.exit.signal(), SIGSEGV);
  EXPECT_EQ(end.exit.exit_code(), -1);
  EXPECT_NE(end.exit.message().find("SIGSEGV"), std::string::npos);
}

TEST(AttemptEndTest, AStopOfTheServiceIsStopped) {
  ExitRecord saved = with_code(85);
  saved.stop = by_service();
  EXPECT_EQ(end_of(saved, std::nullopt).state, v1::Attempt::FAILED);
  EXPECT_EQ(end_of(saved, std::nullopt).exit.reason(), v1::ExitStatus::STOPPED);
  ExitRecord killed = with_signal(SIGKILL);
  killed.stop = by_service();
  killed.killed_by_service = true;
  EXPECT_EQ(end_of(killed, std::nullopt).exit.reason(), v1::ExitStatus::STOPPED);
  ExitRecord never_began;
  never_began.stop = by_service();
  EXPECT_EQ(end_of(never_began, std::nullopt).exit.reason(), v1::ExitStatus::STOPPED);
}

TEST(AttemptEndTest, AFailureWhileStoppingForTheServiceStaysAFailure) {
  ExitRecord record = with_code(66);
  record.stop = by_service();
  EXPECT_EQ(end_of(record, std::nullopt).exit.reason(), v1::ExitStatus::CHECKPOINT_ERROR);
  ExitRecord crashed = with_signal(SIGSEGV);
  crashed.stop = by_service();
  EXPECT_EQ(end_of(crashed, std::nullopt).exit.reason(), v1::ExitStatus::KILLED);
}

TEST(AttemptEndTest, WhatTheUserCancelledIsCancelledHoweverItEnded) {
  for (ExitRecord record : {with_code(85), with_code(70), with_signal(SIGKILL), ExitRecord{}}) {
    record.stop = by_user();
    const AttemptEnd end = end_of(record, std::nullopt);
    EXPECT_EQ(end.state, v1::Attempt::CANCELLED) << to_json(record);
    EXPECT_EQ(end.exit.reason(), v1::ExitStatus::CANCELLED) << to_json(record);
  }
}

TEST(AttemptEndTest, WhatIsDoneIsDoneThoughItWasCancelled) {
  ExitRecord record = with_code(0);
  record.stop = by_user();
  EXPECT_EQ(end_of(record, std::nullopt).state, v1::Attempt::SUCCEEDED);
}

TEST(AttemptEndTest, LaunchAndSupervisorFailures) {
  ExitRecord launch;
  launch.launch_error = "cannot run /nowhere: No such file or directory";
  EXPECT_EQ(end_of(launch, std::nullopt).exit.reason(), v1::ExitStatus::LAUNCH_FAILED);
  EXPECT_EQ(end_of(launch, std::nullopt).exit.message(), launch.launch_error);
  ExitRecord lost;
  lost.supervisor_error = "the supervisor died";
  EXPECT_EQ(end_of(lost, std::nullopt).exit.reason(), v1::ExitStatus::KILLED);
}

TEST(ProgressTest, NonFiniteFiguresPass) {
  protocol::Step step;
  step.step = 3;
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.remaining_seconds = std::numeric_limits<double>::infinity();
  const v1::Progress progress = to_progress(step, 10, 2, 100.5);
  EXPECT_TRUE(std::isnan(progress.loss()));
  EXPECT_FALSE(progress.has_remaining_duration());
  EXPECT_EQ(progress.total_steps(), 10);
  EXPECT_EQ(progress.checkpoint_step(), 2);
  EXPECT_EQ(progress.update_time().seconds(), 100);
  EXPECT_EQ(progress.update_time().nanos(), 500000000);
}

}  // namespace
}  // namespace coat::agent
