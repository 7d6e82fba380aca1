// Commands that change something or stay with a job, and their exit codes.
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/client/fake_job_service.h"
#include "tests/unit/client/cli/command_run.h"

namespace coat::cli {
namespace {

using ::testing::EndsWith;
using testing::failed_job;
using testing::FakeJobService;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::running_job;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::succeeded_job;

constexpr const char* kFile = "name: a-job\ndata: {path: /x}\ntraining: {steps: 5}\n";

CommandRun coat(const FakeJobService& service, std::vector<std::string> arguments,
                const std::string& input = "") {
  return run_command(arguments, {.input = input, .server = service.address()});
}

v1::Estimate sample_estimate() {
  v1::Estimate estimate;
  estimate.set_recipe("coat");
  estimate.set_parameters(3'300'000);
  estimate.set_data_tokens(4'400'000);
  estimate.set_fits(true);
  estimate.set_worker("workers/w1");
  estimate.set_device_memory_bytes(8LL << 30);
  estimate.set_saved_bytes_per_token_per_layer(4200);
  *estimate.mutable_memory() = succeeded_job("x").summary().memory();
  *estimate.mutable_memory_bf16() = succeeded_job("x").summary().memory_bf16();
  return estimate;
}

// Runs `changes` once the command watches, and joins.
class WhenWatched {
 public:
  template <typename Changes>
  WhenWatched(FakeJobService& service, Changes changes)
      : thread_([&service, changes = std::move(changes)] {
          while (service.calls("WatchJobs") == 0) std::this_thread::yield();
          changes();
        }) {}
  ~WhenWatched() { thread_.join(); }

 private:
  std::thread thread_;
};

TEST(Submit, PrintsTheIdOnStandardOutputAlone) {
  FakeJobService service;
  service.set_estimate(sample_estimate());
  const CommandRun run =
      coat(service, {"submit", "-", "--set", "training.steps=7", "--set", "labels.team=x"}, kFile);
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "a-job-abcde\n");
  EXPECT_EQ(run.err,
            "memory: 58.0 MiB with recipe coat, 136 MiB with bf16; 3.3M parameters, 4.4M tokens of data\n"
            "submitted; see it run: coat watch a-job-abcde\n");
  const auto requests = service.submits();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_TRUE(requests[0].validate_only());
  EXPECT_FALSE(requests[1].validate_only());
  EXPECT_EQ(requests[1].spec().training().steps(), 7);
  EXPECT_EQ(requests[1].spec().labels().at("team"), "x");
  EXPECT_THAT(requests[1].request_id(), SizeIs(36));
}

TEST(Submit, FormatsAndRequestId) {
  FakeJobService service;
  const CommandRun name = coat(service, {"submit", "-", "-o", "name", "--request-id", "once"}, kFile);
  EXPECT_EQ(name.out, "a-job-abcde\n");
  EXPECT_EQ(name.err, "");
  EXPECT_EQ(service.submits().back().request_id(), "once");
  EXPECT_EQ(nlohmann::json::parse(coat(service, {"submit", "-", "-o", "json"}, kFile).out)["state"],
            "PENDING");
}

TEST(Submit, HintsCanBeTypedAsTheyStand) {
  FakeJobService service;
  const CommandRun run = run_command({"--server", service.address(), "submit", "-"}, {.input = kFile});
  EXPECT_THAT(run.err, HasSubstr("coat --server " + service.address() + " watch a-job-abcde\n"));
}

TEST(Submit, DryRunSubmitsNothing) {
  FakeJobService service;
  const CommandRun unseen = coat(service, {"submit", "-", "--dry-run"}, kFile);
  EXPECT_EQ(unseen.code, 0);
  EXPECT_THAT(unseen.err,
              HasSubstr("no worker is connected to look at data and memory; nothing was submitted"));
  service.set_estimate(sample_estimate());
  EXPECT_THAT(coat(service, {"submit", "-", "--dry-run"}, kFile).err,
              HasSubstr("the job is sound; nothing was submitted"));
  EXPECT_EQ(service.calls("SubmitJob"), 0);
}

TEST(Submit, ARefusedJobIsNotSubmitted) {
  FakeJobService service;
  ServiceError error = failed_precondition("MEMORY_ESTIMATE_EXCEEDS_DEVICE",
                                           "the job needs 3 GiB, the largest device has 2 GiB");
  service.fail_next("ValidateJob", error);
  const CommandRun run = coat(service, {"submit", "-"}, kFile);
  EXPECT_EQ(run.code, 6);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err, "coat: the job needs 3 GiB, the largest device has 2 GiB\n");
  service.fail_next("ValidateJob", invalid_argument({{"data.path", "/x is missing", "name a file"}}));
  const CommandRun bad = coat(service, {"submit", "-"}, kFile);
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err, "coat: data.path: /x is missing; name a file\n");
  EXPECT_EQ(service.calls("SubmitJob"), 0);
}

TEST(Submit, WaitShowsProgressAndEndsWithTheJobsCode) {
  FakeJobService service;
  CommandRun run;
  {
    const WhenWatched trainer(service, [&] {
      service.put(running_job("a-job-abcde", 50), "started");
      service.put(succeeded_job("a-job-abcde"), "succeeded");
    });
    run = coat(service, {"submit", "-", "--wait"}, kFile);
  }
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "a-job-abcde\n");
  EXPECT_EQ(run.err,
            "PENDING  EVALUATING\n"
            "RUNNING\n"
            "step 50/100  loss 3.5000  3.4k tokens/s  memory 80.0 MiB  error activation 2.63 %, moment1 1.10 "
            "%  left 50s\n"
            "a-job-abcde SUCCEEDED: loss 5.5452 -> 1.7123 in 100 steps, 2m 10s\n"
            "all about it: coat describe a-job-abcde\n");
}

TEST(Watch, ExitCodesFollowTheJob) {
  FakeJobService service;
  service.put(succeeded_job("s"));
  service.put(failed_job("f"));
  v1::Job cancelled = running_job("c", 40);
  cancelled.set_state(v1::Job::CANCELLED);
  service.put(cancelled);
  for (const char* command : {"watch", "wait"}) {
    EXPECT_EQ(coat(service, {command, "s"}).code, 0);
    EXPECT_EQ(coat(service, {command, "f"}).code, 1);
    EXPECT_EQ(coat(service, {command, "c"}).code, 3);
    EXPECT_EQ(coat(service, {command, "nope"}).code, 4);
  }
  EXPECT_EQ(coat(service, {"watch", "f"}).out,
            "f FAILED: DATA_ERROR, data.path: the file /data/text is empty\n"
            "  what to do: name a file with at least 257 tokens\n");
  EXPECT_EQ(coat(service, {"wait", "c"}).out,
            "c CANCELLED at step 40/100  loss 3.9000  3.4k tokens/s  memory 80.0 MiB  error activation 2.63 "
            "%, moment1 1.10 %\n");
  EXPECT_EQ(coat(service, {"wait", "s", "-o", "name"}).out, "s\n");
  EXPECT_EQ(nlohmann::json::parse(coat(service, {"wait", "f", "-o", "json"}).out)["exit"]["field"],
            "data.path");
}

TEST(Watch, TellsStatesAttemptsAndInterruptions) {
  FakeJobService service;
  service.put(running_job("j", 1));
  service.break_streams(1);
  CommandRun run;
  {
    const WhenWatched trainer(service, [&] {
      v1::Job lost = running_job("j", 10);
      lost.set_state(v1::Job::PENDING);
      lost.mutable_pending_status()->set_reason(v1::PendingStatus::WORKER_LOST);
      lost.mutable_pending_status()->set_message("w1 is silent");
      service.put(lost, "lost", "jobs/j/attempts/1");
      v1::Job again = running_job("j", 10);
      again.set_attempt_count(2);
      service.put(again, "assigned");
      service.put(succeeded_job("j"), "succeeded");
    });
    run = coat(service, {"watch", "j"});
  }
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, StartsWith("RUNNING\nstep 1/100  loss 5.4600"));
  EXPECT_THAT(run.out, HasSubstr("attempt 1 PENDING\nPENDING  WORKER_LOST: w1 is silent\n"));
  EXPECT_THAT(run.out, HasSubstr("connection lost (broken by the test); trying again\n"));
  EXPECT_THAT(run.out, HasSubstr("RUNNING  attempt 2\n"));
  EXPECT_THAT(run.out, EndsWith("j SUCCEEDED: loss 5.5452 -> 1.7123 in 100 steps, 2m 10s\n"));
}

TEST(Watch, OnATerminalOneLineIsRewritten) {
  FakeJobService service;
  service.put(running_job("j", 40));
  CommandRun run;
  {
    const WhenWatched trainer(service, [&] { service.put(succeeded_job("j"), "succeeded"); });
    run = run_command({"watch", "j"}, {.server = service.address(), .tty = true, .width = 60});
  }
  EXPECT_EQ(run.out,
            "RUNNING\n"
            "\r\x1b[K[========>           ] step 40/100  loss 3.9000  3.4k to..."
            "\r\x1b[K[====================] step 100/100  loss 1.5000  3.4k t..."
            "\r\x1b[Kj SUCCEEDED: loss 5.5452 -> 1.7123 in 100 steps, 2m 10s\n");
}

TEST(Watch, JsonIsALineForEachChange) {
  FakeJobService service;
  service.put(running_job("j", 40));
  CommandRun run;
  {
    const WhenWatched trainer(service, [&] { service.put(failed_job("j"), "failed"); });
    run = coat(service, {"watch", "j", "-o", "json"});
  }
  EXPECT_EQ(run.code, 1);
  std::istringstream lines(run.out);
  std::vector<std::string> states;
  for (std::string line; std::getline(lines, line);)
    states.push_back(nlohmann::json::parse(line)["job"]["state"]);
  EXPECT_THAT(states, ::testing::ElementsAre("RUNNING", "FAILED"));
}

TEST(Wait, TimeoutEndsWith124) {
  FakeJobService service;
  service.put(running_job("j", 40));
  for (const char* command : {"watch", "wait"}) {
    const CommandRun run = coat(service, {command, "j", "--timeout", "50ms"});
    EXPECT_EQ(run.code, 124);
    EXPECT_THAT(run.err, HasSubstr("coat: the time of --timeout is up; the job goes on\n"));
  }
}

TEST(Watch, CtrlCSaysThatTheJobGoesOnAndHowToEndIt) {
  FakeJobService service;
  service.put(running_job("j", 40));
  std::stop_source stop;
  CommandRun run;
  {
    const WhenWatched person(service, [&] { stop.request_stop(); });
    run = run_command({"watch", "j"}, {.server = service.address(), .stop = stop.get_token()});
  }
  EXPECT_EQ(run.code, 130);
  EXPECT_EQ(run.err, "\nthe job goes on. See it again: coat watch j; end it: coat cancel j\n");
}

TEST(Cancel, TellsWhatHappens) {
  FakeJobService service;
  service.put(running_job("r", 40));
  service.put(succeeded_job("s"));
  const CommandRun run = coat(service, {"cancel", "r", "s", "nope", "-o", "name"});
  EXPECT_EQ(run.code, 4);
  EXPECT_EQ(run.out, "r\ns\n");
  EXPECT_EQ(run.err,
            "r saves a checkpoint and stops; see it end: coat wait r\n"
            "s had ended before: SUCCEEDED\n"
            "coat: there is no job \"jobs/nope\"\n");
  EXPECT_EQ(coat(service, {"cancel", "r", "--no-headers"}).out,
            "r  CANCELLING  40/100  3.9000  0.0s  waits for its trainer to save and stop\n");
}

TEST(Logs, OfTheLatestAttemptToTheLastByte) {
  FakeJobService service;
  v1::Job job = succeeded_job("j");
  job.set_attempt_count(2);
  service.put(job);
  const std::string second = std::string("two\n\0\xff", 6) + " end";
  service.append_log("jobs/j/attempts/1", "one\n", true);
  service.append_log("jobs/j/attempts/2", second, true);
  EXPECT_EQ(coat(service, {"logs", "j"}).out, second);
  EXPECT_EQ(coat(service, {"logs", "j", "-f"}).out, second);
  EXPECT_EQ(coat(service, {"logs", "j", "--attempt", "1"}).out, "one\n");
  EXPECT_EQ(coat(service, {"logs", "j", "--offset", "6"}).out, " end");
  EXPECT_EQ(coat(service, {"logs", "j", "--attempt", "9"}).code, 4);
}

TEST(Logs, FollowGoesOnOverAttempts) {
  FakeJobService service;
  service.put(running_job("j", 1));
  service.append_log("jobs/j/attempts/1", "one\n", true);
  service.append_log("jobs/j/attempts/2", "two\n", true);
  CommandRun run;
  {
    const WhenWatched trainer(service, [&] {
      v1::Job again = succeeded_job("j");
      again.set_attempt_count(2);
      service.put(again, "succeeded");
    });
    run = coat(service, {"logs", "j", "-f"});
  }
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "one\ntwo\n");
  EXPECT_EQ(run.err, "-- attempt 2\n");
}

TEST(Logs, APendingJobHasNone) {
  FakeJobService service;
  v1::Job job = running_job("j", 0);
  job.set_state(v1::Job::PENDING);
  job.set_attempt_count(0);
  job.mutable_pending_status()->set_reason(v1::PendingStatus::NO_WORKER);
  service.put(job);
  const CommandRun run = coat(service, {"logs", "j"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_EQ(run.err, "j has no attempt, so there is no log. PENDING NO_WORKER\n");
}

TEST(Estimate, TellsMemoryByCategoryAndWhetherItFits) {
  FakeJobService service;
  EXPECT_EQ(coat(service, {"estimate", "-"}, kFile).code, 6);
  service.set_estimate(sample_estimate());
  const CommandRun run = coat(service, {"estimate", "-"}, kFile);
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out,
            "3.3M parameters, 4,400,000 tokens of data, 4,200 bytes saved a token and layer\n\n"
            "  MEMORY             coat      bf16  coat needs\n"
            "  weights        12.0 MiB  12.0 MiB  same\n"
            "  gradients      12.0 MiB  12.0 MiB  same\n"
            "  first moment    3.0 MiB  12.0 MiB  4.00x less\n"
            "  second moment   3.0 MiB  12.0 MiB  4.00x less\n"
            "  activations    20.0 MiB  80.0 MiB  4.00x less\n"
            "  workspace       8.0 MiB   8.0 MiB  same\n"
            "  total          58.0 MiB   136 MiB  2.34x less\n"
            "\nfits: the largest device of w1 holds 8.0 GiB\n");
  EXPECT_EQ(nlohmann::json::parse(coat(service, {"estimate", "-", "-o", "json"}, kFile).out)["fits"], true);
}

}  // namespace
}  // namespace coat::cli
