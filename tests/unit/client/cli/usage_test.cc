// What happens before the service is asked: usage, help and job files.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/common/spec_conversion.h"
#include "tests/unit/client/cli/command_run.h"

namespace coat::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct BadUsage {
  std::vector<std::string> arguments;
  const char* told;
};

TEST(Usage, MistakesNameTheOptionAndTheFixAndEndWith2) {
  const BadUsage cases[] = {
      {{}, "coat: A subcommand is required\n  see `coat --help`\n"},
      {{"lst"}, "coat: \"lst\" is no command; did you mean list?\n  see `coat --help`\n"},
      {{"--server", "a:1", "xyzzy"},
       "coat: \"xyzzy\" is no command; use submit, get, list, describe, workers, cancel, watch, wait, logs "
       "or "
       "estimate\n  see `coat --help`\n"},
      {{"get"}, "coat: JOB is required\n  see `coat get --help`\n"},
      {{"get", "a", "-o", "xml"},
       "coat: --output: xml not in {table,wide,json,yaml,name}\n  see `coat get --help`\n"},
      {{"get", "a", "--frob"},
       "coat: The following argument was not expected: --frob\n  see `coat get --help`\n"},
      {{"submit", "-", "--set", "steps"},
       "coat: --set: \"steps\" is not KEY=VALUE; write for example --set training.steps=100\n"},
      {{"list", "--label", "=x"},
       "coat: --label: \"=x\" is not KEY=VALUE; write for example --label team=vision\n"},
      {{"list", "--state", "RUNING"},
       "coat: --state: \"RUNING\" is not known; use PENDING, RUNNING, CANCELLING, SUCCEEDED, FAILED or "
       "CANCELLED\n"},
      {{"wait", "a", "--timeout", "soon"},
       "coat: --timeout: \"soon\" is not a duration; write for example 90s, 10m or 1h30m\n"},
      {{"list", "--server", "nowhere"},
       "coat: --server: \"nowhere\" is not HOST:PORT; write for example 127.0.0.1:7460\n"},
  };
  for (const BadUsage& bad : cases) {
    const CommandRun run = run_command(bad.arguments, {});
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(run.err, bad.told);
    EXPECT_EQ(run.out, "");
  }
  const CommandRun run = run_command({"list"}, {.server = "nowhere"});
  EXPECT_EQ(run.err, "coat: COAT_SERVER: \"nowhere\" is not HOST:PORT; write for example 127.0.0.1:7460\n");
}

TEST(Usage, HelpOfEveryCommandTeachesWithExamples) {
  const CommandRun all = run_command({"--help"}, {});
  EXPECT_EQ(all.code, 0);
  for (const char* command :
       {"submit", "get", "list", "describe", "workers", "cancel", "watch", "wait", "logs", "estimate"}) {
    EXPECT_THAT(all.out, HasSubstr(std::string("  ") + command + " "));
    const CommandRun run = run_command({command, "--help"}, {});
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.out, HasSubstr("Example"));
    EXPECT_THAT(run.out, HasSubstr(std::string("coat ") + command + " ")) << "an example that can be typed";
    EXPECT_EQ(run.err, "");
  }
}

// The job file that the help shows is one.
TEST(Usage, TheSmallestJobFileOfTheHelpIsSound) {
  const std::string help = run_command({"submit", "--help"}, {}).out;
  const std::size_t begin = help.find("The smallest job file:\n");
  ASSERT_NE(begin, std::string::npos);
  const std::size_t first = help.find('\n', begin) + 1;
  const std::string file = help.substr(first, help.find("\n\n", first) - first);
  const auto spec = parse_yaml(file, "help", {});
  ASSERT_TRUE(spec.ok()) << file << format_for_people(spec.error());
  EXPECT_EQ(spec.value().training().steps(), 100);
}

TEST(Usage, VersionIsTold) {
  EXPECT_EQ(run_command({"--version"}, {}).out, std::string("coat ") + kVersion + "\n");
}

TEST(JobFile, ProblemsAreToldBeforeTheServiceIsAsked) {
  const std::string nowhere = "127.0.0.1:1";
  const CommandRun bad = run_command({"submit", "-"}, {.input = "name: a\nstpes: 3\n", .server = nowhere});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err,
            "coat: 3 problems: data.path, training.steps, stpes\n"
            "  data.path: is required; add it, for example data.path = /data/text.txt\n"
            "  training.steps: is required; add it, for example training.steps = 100\n"
            "  stpes: is not a known field (line 2); did you mean training.steps?\n");
  const CommandRun missing = run_command({"estimate", "/nonexistent/job.yaml"}, {.server = nowhere});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(
      missing.err,
      "coat: /nonexistent/job.yaml: cannot be read: No such file or directory; name a readable job file\n");
  const CommandRun folder = run_command({"submit", "/"}, {.server = nowhere});
  EXPECT_EQ(folder.code, 2);
  EXPECT_EQ(folder.err, "coat: /: cannot be read: Is a directory; name a readable job file\n");
  const CommandRun large =
      run_command({"submit", "-"}, {.input = std::string(2 << 20, '#'), .server = nowhere});
  EXPECT_EQ(large.code, 2);
  EXPECT_THAT(large.err, StartsWith("coat: standard input: has 1048577 bytes: is it a job file?"));
}

TEST(Unreachable, NamesTheAddressAndEndsWith5) {
  const CommandRun run = run_command({"list"}, {.server = "127.0.0.1:1"});
  EXPECT_EQ(run.code, 5);
  EXPECT_THAT(run.err, StartsWith("coat: cannot reach the service at 127.0.0.1:1 ("));
  EXPECT_THAT(
      run.err,
      HasSubstr("is coat-controller running there? Name another address with --server or COAT_SERVER"));
}

}  // namespace
}  // namespace coat::cli
