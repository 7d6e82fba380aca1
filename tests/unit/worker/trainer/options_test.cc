#include "worker/trainer/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat::trainer {
namespace {

using ::testing::HasSubstr;

Options parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> pointers = {"coat-trainer"};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  return parse_options(static_cast<int>(pointers.size()), pointers.data());
}

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

// The agent writes the command line with launch_arguments; it must come back as it was.
TEST(Options, ReadsWhatTheAgentWrites) {
  const protocol::Launch launch{.spec_path = "/a b.json",
                                .checkpoint_dir = "/c",
                                .device = "cuda:3",
                                .threads = 2,
                                .memory_bytes = 1'000'000'000'000,
                                .resume = true,
                                .epoch = 12,
                                .event_fd = 5,
                                .estimate = true};
  const Options options = parse(protocol::launch_arguments(launch));
  EXPECT_EQ(protocol::launch_arguments(options.launch), protocol::launch_arguments(launch));
  EXPECT_EQ(options.launch.memory_bytes, launch.memory_bytes);
  const protocol::Launch least{.spec_path = "s"};
  EXPECT_EQ(protocol::launch_arguments(parse(protocol::launch_arguments(least)).launch),
            protocol::launch_arguments(least));
}

TEST(Options, RefusesWhatItCannotDo) {
  EXPECT_THAT(refusal({}), HasSubstr("--spec FILE or --sample-from FOLDER is needed"));
  EXPECT_THAT(refusal({"--spec", "s", "--sped", "x"}), HasSubstr("--sped"));
  EXPECT_THAT(refusal({"--spec", "s", "--threads", "-1"}), HasSubstr("--threads"));
  EXPECT_THAT(refusal({"--spec", "s", "--memory-bytes", "8GiB"}), HasSubstr("--memory-bytes"));
  EXPECT_THAT(refusal({"--spec", "s", "--epoch", "-3"}), HasSubstr("--epoch"));
  EXPECT_THAT(refusal({"--spec", "s", "--events", "f", "--event-fd", "4"}), HasSubstr("--event"));
  EXPECT_THAT(refusal({"--spec", "s", "--sample-from", "c"}), HasSubstr("--sample-from"));
  EXPECT_THAT(refusal({"--spec", "s", "--prompt", "p"}), HasSubstr("--prompt"));
  EXPECT_THAT(refusal({"--sample-from", "c", "--temperature", "-1"}), HasSubstr("--temperature"));
}

TEST(Options, HelpHasExamplesAndExitCodes) {
  try {
    parse({"--help"});
    FAIL() << "help ends the program";
  } catch (const UsageError& error) {
    EXPECT_TRUE(error.is_help);
    EXPECT_THAT(error.what(), HasSubstr("Examples:"));
    EXPECT_THAT(error.what(), HasSubstr("Exit codes:"));
  }
}

}  // namespace
}  // namespace coat::trainer
