// The program as people and agents start it: exit codes, events, output.
#include "tests/unit/worker/trainer/program.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tests/unit/worker/trainer/job_folder.h"
#include "worker/protocol/exit_codes.h"

namespace coat::trainer {
namespace {

using coat::testing::read_file;
using protocol::ExitCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MATCHER_P(EndsWithCode, code, "") { return arg.exit_code == static_cast<int>(code) && arg.signal == 0; }

class ProgramTest : public JobFolder {
 protected:
  Outcome run(const std::vector<std::string>& more = {}, const std::string& checkpoints = "checkpoints") {
    return run_program(folder_.path(), arguments(checkpoints, more));
  }
  // The one Failure among the events on standard output.
  static protocol::Failure failure_in(const Outcome& outcome) {
    const auto failures = events_of<protocol::Failure>(parse_events(outcome.out));
    EXPECT_THAT(failures, SizeIs(1)) << outcome.err;
    return failures.empty() ? protocol::Failure{} : failures[0];
  }
};

TEST_F(ProgramTest, DoneWithEventsOnStandardOutput) {
  spec_["sample"] = {{"prompt", "in "}, {"tokens", 5}};
  const Outcome outcome = run();
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kDone)) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto events = parse_events(outcome.out);
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(std::holds_alternative<protocol::Started>(events.front()));
  EXPECT_TRUE(std::holds_alternative<protocol::Summary>(events.back()));
  const auto steps = events_of<protocol::Step>(events);
  ASSERT_THAT(steps, SizeIs(6));
  EXPECT_THAT(steps[0].quantization, SizeIs(6));  // three classes of matrices, two moments and what they give
  EXPECT_THAT(steps[2].quantization, IsEmpty());
  EXPECT_GT(steps[5].memory_peak_bytes, 0);
  const auto summary = std::get<protocol::Summary>(events.back());
  EXPECT_EQ(summary.steps, 6);
  EXPECT_TRUE(summary.sample.starts_with("in "));
  EXPECT_EQ(summary.checkpoint_path, folder_ / "checkpoints/step-00000006");
}

TEST_F(ProgramTest, TheMeasuredPeakIsTheLedgersWithinTwoPercent) {
  for (const char* recipe : {"coat", "coat-paper", "bf16"}) {
    spec_["recipe"] = recipe;
    const Outcome outcome = run({}, recipe);
    ASSERT_THAT(outcome, EndsWithCode(ExitCode::kDone)) << outcome.err;
    const auto events = parse_events(outcome.out);
    const auto summary = events_of<protocol::Summary>(events).at(0);
    const auto peak = static_cast<double>(summary.memory_peak_bytes);
    EXPECT_NEAR(peak, static_cast<double>(summary.memory.total_bytes), 0.02 * peak) << recipe;
    EXPECT_EQ(events_of<protocol::Started>(events).at(0).estimate.memory, summary.memory);
  }
}

TEST_F(ProgramTest, ALogForPeopleWhereEventsGoElsewhere) {
  const Outcome outcome = run({"--events", folder_ / "events.jsonl"});
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kDone));
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("step 1/6  loss "), HasSubstr("step 6/6  loss "), HasSubstr(" tokens/s"),
                    HasSubstr("checkpoint of step 6"), HasSubstr("unigram entropy")));
  EXPECT_THAT(events_of<protocol::Step>(parse_events(read_file(folder_ / "events.jsonl"))), SizeIs(6));
}

TEST_F(ProgramTest, EstimateIsOneLineAndMakesNothing) {
  const Outcome outcome = run({"--estimate", "--memory-bytes", "1000"});
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kDone));
  const protocol::Estimate estimate = protocol::parse_estimate(outcome.out.substr(0, outcome.out.find('\n')));
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1);
  EXPECT_FALSE(estimate.fits);
  EXPECT_EQ(estimate.device_memory_bytes, 1000);
  EXPECT_EQ(estimate.data_tokens, static_cast<std::int64_t>(std::filesystem::file_size(folder_ / "text")));
  EXPECT_LT(estimate.memory.total_bytes, estimate.memory_bf16.total_bytes);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoints"));
  spec_["data"]["path"] = folder_ / "missing";
  const Outcome missing = run({"--estimate"});
  EXPECT_THAT(missing, EndsWithCode(ExitCode::kDataError));
  EXPECT_EQ(failure_in(missing).field, "data.path");
}

TEST_F(ProgramTest, BadSpecsNameEveryField) {
  spec_["model"]["hiden"] = 32;
  spec_["training"]["steps"] = 0;
  const Outcome outcome = run();
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kBadSpec));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("model.hiden"), HasSubstr("training.steps")));
  const protocol::Failure failure = failure_in(outcome);
  EXPECT_EQ(failure.exit_code, 64);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("model.hiden"), HasSubstr("training.steps")));
  EXPECT_NE(failure.field, "");
}

TEST_F(ProgramTest, BadCommandLinesAndDevices) {
  EXPECT_THAT(run({"--frobnicate"}), EndsWithCode(ExitCode::kBadSpec));
  const Outcome device = run({"--device", "tpu:0"});
  EXPECT_THAT(device, EndsWithCode(ExitCode::kBadSpec));
  EXPECT_THAT(device.err, HasSubstr("'tpu:0' is no device"));
  const Outcome cuda = run({"--device", "cuda:0"});
  EXPECT_THAT(cuda, EndsWithCode(ExitCode::kBadSpec));
  EXPECT_EQ(failure_in(cuda).field, "resources.device");
  spec_["resources"] = {{"device", "cuda"}};
  EXPECT_EQ(failure_in(run()).field, "resources.device");
  spec_["resources"] = {{"devices", 2}};
  EXPECT_EQ(failure_in(run()).field, "resources.devices");
  const Outcome missing = run_program(folder_.path(), {"--spec", folder_ / "none.json"});
  EXPECT_THAT(missing, EndsWithCode(ExitCode::kBadSpec));
  EXPECT_THAT(missing.err, HasSubstr("none.json"));
  EXPECT_THAT(run_program(folder_.path(), {"--spec", folder_.path()}), EndsWithCode(ExitCode::kBadSpec));
  EXPECT_THAT(run_program(folder_.path(), {"--help"}), EndsWithCode(ExitCode::kDone));
}

TEST_F(ProgramTest, DataErrorsNameTheField) {
  spec_["data"]["path"] = folder_.write("empty", "");
  const Outcome outcome = run();
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kDataError));
  EXPECT_THAT(failure_in(outcome).message, HasSubstr("is empty"));
}

TEST_F(ProgramTest, AJobLargerThanTheDeviceNeverStarts) {
  const Outcome outcome = run({"--memory-bytes", "100000"});
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kOutOfDeviceMemory));
  EXPECT_THAT(failure_in(outcome).message, HasSubstr("may hold 100000"));
  EXPECT_THAT(events_of<protocol::Started>(parse_events(outcome.out)), IsEmpty());
}

TEST_F(ProgramTest, ALossThatExplodesIsToldWithWhatCameBefore) {
  spec_["optimizer"] = {{"learning_rate", 1e30}, {"weight_decay", 0}};
  const Outcome outcome = run();
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kNonFiniteLoss)) << outcome.err;
  const auto events = parse_events(outcome.out);
  EXPECT_EQ(failure_in(outcome).exit_code, 72);
  ASSERT_TRUE(std::holds_alternative<protocol::Summary>(events.back()))
      << "the last event of a run that trained";
  EXPECT_GE(std::get<protocol::Summary>(events.back()).steps, 1);
}

TEST_F(ProgramTest, ADamagedCheckpointIsNamed) {
  ASSERT_THAT(run(), EndsWithCode(ExitCode::kDone));
  const std::string path = folder_ / "checkpoints/step-00000006/optimizer.bin";
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  const Outcome outcome = run({"--resume"});
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kCheckpointError));
  EXPECT_THAT(failure_in(outcome).message, AllOf(HasSubstr("optimizer.bin"), HasSubstr("SHA-256")));
}

TEST_F(ProgramTest, AFullDiskWhileSavingIsAnErrorThatNamesBytes) {
  const auto small_files = [] {
    const rlimit limit{20000, 20000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(125);
  };
  const Outcome outcome = run_program(folder_.path(), arguments("checkpoints"), small_files);
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kCheckpointError)) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("File too large"), HasSubstr("bytes in '" + folder_ / "checkpoints")));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "checkpoints")) {
    EXPECT_EQ(entry.path().string().find("step-"), std::string::npos) << "nothing half-written stays";
  }
}

TEST_F(ProgramTest, AFolderThatCannotBeWrittenIsFoundAtTheStart) {
  folder_.write("file", "in the way");
  const Outcome outcome = run({}, "file/checkpoints");
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kCheckpointError));
  EXPECT_THAT(events_of<protocol::Step>(parse_events(outcome.out)), IsEmpty());
}

TEST_F(ProgramTest, ALowerEpochIsFenced) {
  ASSERT_THAT(run({"--epoch", "7"}), EndsWithCode(ExitCode::kDone));
  const Outcome outcome = run({"--epoch", "6", "--resume"});
  EXPECT_THAT(outcome, EndsWithCode(ExitCode::kFenced));
  EXPECT_THAT(failure_in(outcome).message, HasSubstr("belongs to epoch 7"));
}

TEST_F(ProgramTest, SamplesFromACheckpoint) {
  ASSERT_THAT(run(), EndsWithCode(ExitCode::kDone));
  const std::vector<std::string> command = {
      "--sample-from", folder_ / "checkpoints", "--prompt", "the ", "--tokens", "7", "--seed", "3"};
  const Outcome first = run_program(folder_.path(), command);
  EXPECT_THAT(first, EndsWithCode(ExitCode::kDone)) << first.err;
  EXPECT_TRUE(first.out.starts_with("the "));
  EXPECT_GE(first.out.size(), 4u + 7u + 1u);
  EXPECT_EQ(run_program(folder_.path(), command).out, first.out);
  EXPECT_THAT(run_program(folder_.path(), {"--sample-from", folder_ / "nowhere", "--prompt", "a"}),
              EndsWithCode(ExitCode::kCheckpointError));
}

}  // namespace
}  // namespace coat::trainer
