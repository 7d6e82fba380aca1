// Stopping and going on: signals, commands, kill -9, a lost agent.
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>

#include "tests/unit/worker/trainer/job_folder.h"
#include "tests/unit/worker/trainer/program.h"
#include "worker/protocol/exit_codes.h"

namespace coat::trainer {
namespace {

using coat::testing::read_file;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kStopped = static_cast<int>(protocol::ExitCode::kStopped);

class StopTest : public JobFolder {
 protected:
  // So long that it is always stopped before its end.
  void make_endless() { spec_["training"]["steps"] = 1'000'000; }

  std::vector<protocol::Event> events() { return parse_events(read_file(folder_ / "out")); }
  std::vector<double> losses(const std::string& text) {
    std::vector<double> values;
    for (const protocol::Step& step : events_of<protocol::Step>(parse_events(text)))
      values.push_back(step.loss);
    return values;
  }
  // Whether standard output already tells of a step with at least this number.
  bool has_reached(std::int64_t step) {
    const std::string text = read_file(folder_ / "out");
    return text.find("\"step\":" + std::to_string(step) + ",") != std::string::npos;
  }
  void expect_same_files(const std::string& a, const std::string& b) {
    for (const char* name : {"parameters.bin", "optimizer.bin"}) {
      EXPECT_EQ(read_file(folder_ / (a + "/" + name)), read_file(folder_ / (b + "/" + name))) << name;
    }
  }
};

TEST_F(StopTest, SignalsStopAfterACheckpoint) {
  make_endless();
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string checkpoints = "checkpoints" + std::to_string(number);
    Program program(folder_.path(), arguments(checkpoints));
    ASSERT_TRUE(eventually([&] { return has_reached(3); }));
    program.signal(number);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, kStopped) << outcome.err;
    const auto all = parse_events(outcome.out);
    const auto steps = events_of<protocol::Step>(all);
    const auto saved = events_of<protocol::Checkpoint>(all);
    ASSERT_THAT(saved, SizeIs(1));
    EXPECT_EQ(saved[0].step, steps.back().step);
    EXPECT_TRUE(std::filesystem::exists(saved[0].path + "/manifest.json"));
    EXPECT_EQ(events_of<protocol::Failure>(all).at(0).exit_code, kStopped);
    EXPECT_TRUE(std::holds_alternative<protocol::Summary>(all.back()));
  }
}

TEST_F(StopTest, ASecondInterruptEndsItAtOnce) {
  spec_["model"] = {
      {"vocab_size", 128}, {"hidden", 512}, {"intermediate", 2048}, {"layers", 4}, {"heads", 2}};
  spec_["training"] = {{"steps", 1000}, {"sequence_length", 256}, {"micro_batch", 4}};
  Program program(folder_.path(), arguments("checkpoints"));
  // After a step it is inside the next one, whose micro-batch takes far longer than the two signals; signals
  // of one kind may merge while pending.
  ASSERT_TRUE(eventually([&] { return read_file(folder_ / "out").find("\"loss\"") != std::string::npos; }));
  const auto deadline_reached = [&, sent = 0]() mutable {
    program.signal(SIGINT);
    return ++sent == 100;
  };
  EXPECT_TRUE(eventually(deadline_reached));
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.signal, SIGINT);
}

TEST_F(StopTest, CommandsOfTheAgentSaveAndStop) {
  make_endless();
  SocketPair sockets;
  Program program(folder_.path(), arguments("checkpoints"), sockets.trainer);
  sockets.close_trainer();
  LineReader lines(sockets.agent);
  const auto send = [&](const protocol::Command& command) {
    const std::string line = protocol::to_line(command) + "\n";
    ASSERT_EQ(::write(sockets.agent, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  };
  std::vector<protocol::Event> seen;
  const auto read_until = [&](auto wanted) {
    for (std::string line = lines.next(); !line.empty(); line = lines.next()) {
      seen.push_back(protocol::parse_event(line));
      if (wanted(seen.back())) return true;
    }
    return false;
  };
  ASSERT_TRUE(read_until([](const auto& event) { return std::holds_alternative<protocol::Step>(event); }));
  send(protocol::SaveCheckpoint{});
  ASSERT_TRUE(
      read_until([](const auto& event) { return std::holds_alternative<protocol::Checkpoint>(event); }));
  ASSERT_TRUE(read_until([](const auto& event) { return std::holds_alternative<protocol::Step>(event); }))
      << "it goes on";
  send(protocol::StopAfterCheckpoint{});
  ASSERT_TRUE(read_until([](const auto& event) { return std::holds_alternative<protocol::Summary>(event); }));
  EXPECT_EQ(lines.next(), "") << "nothing comes after the summary";
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, kStopped);
  EXPECT_THAT(outcome.out, HasSubstr("step 1/1000000"));
  const auto saved = events_of<protocol::Checkpoint>(seen);
  EXPECT_EQ(saved.back().step, events_of<protocol::Step>(seen).back().step);
}

TEST_F(StopTest, AnAgentThatIsGoneStopsNothing) {
  spec_["training"]["steps"] = 30;
  SocketPair sockets;
  Program program(folder_.path(), arguments("checkpoints"), sockets.trainer);
  sockets.close_trainer();
  LineReader lines(sockets.agent);
  ASSERT_NE(lines.next(), "");
  sockets.close_agent();
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoints/step-00000030/manifest.json"));
}

class KillTest : public StopTest, public ::testing::WithParamInterface<const char*> {};

// Killed at no chosen moment, again and again: what the last attempt ends with are the bits of an undisturbed
// run.
TEST_P(KillTest, KilledAndResumedIsTheUndisturbedRunBitForBit) {
  spec_["recipe"] = GetParam();
  spec_["training"]["steps"] = 200;
  spec_["checkpoint"] = {{"interval_steps", 10}};
  const Outcome whole = run_program(folder_.path(), arguments("whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::vector<double> expected = losses(whole.out);
  ASSERT_THAT(expected, SizeIs(200));
  int epoch = 0;
  int kills = 0;
  for (const std::int64_t kill_at : {27, 64, 101}) {
    Program program(folder_.path(), arguments("killed", {"--resume", "--epoch", std::to_string(++epoch)}));
    ASSERT_TRUE(eventually([&] { return has_reached(kill_at); }));
    program.signal(SIGKILL);
    kills += program.wait().signal == SIGKILL ? 1 : 0;  // a stalled test may come too late
  }
  EXPECT_GE(kills, 1);
  const Outcome last = run_program(folder_.path(), arguments("killed", {"--resume", "--epoch", "9"}));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(last.err, "") << "no checkpoint was damaged";
  const auto started = events_of<protocol::Started>(parse_events(last.out)).at(0);
  EXPECT_GE(started.resume_step, 100);
  const std::vector<double> tail = losses(last.out);
  EXPECT_EQ(tail, std::vector<double>(expected.begin() + started.resume_step, expected.end()));
  expect_same_files("killed/step-00000200", "whole/step-00000200");
}

TEST_P(KillTest, NAndNStepsAreTwoNThroughANewProcess) {
  spec_["recipe"] = GetParam();
  spec_["training"]["steps"] = 20;
  const Outcome whole = run_program(folder_.path(), arguments("whole"));
  ASSERT_EQ(whole.exit_code, 0);
  Program first(folder_.path(), arguments("parts"));
  ASSERT_TRUE(eventually([&] { return has_reached(8); }));
  first.signal(SIGTERM);
  const Outcome part = first.wait();
  std::vector<double> all = losses(part.out);
  if (part.exit_code == kStopped) {
    const Outcome rest = run_program(folder_.path(), arguments("parts", {"--resume"}));
    ASSERT_EQ(rest.exit_code, 0) << rest.err;
    for (const double loss : losses(rest.out)) all.push_back(loss);
  }
  EXPECT_EQ(all, losses(whole.out));
  expect_same_files("parts/step-00000020", "whole/step-00000020");
}

INSTANTIATE_TEST_SUITE_P(Recipes, KillTest, ::testing::Values("coat", "bf16"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace coat::trainer
