#include "worker/agent/options.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat::agent {
namespace {

using ::testing::HasSubstr;

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "coat-worker");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST(OptionsTest, DefaultsAreThoseOfTheHelp) {
  const CommandLine line = parse({"--state-dir", "/tmp/x", "--trainer", "/bin/true"});
  ASSERT_TRUE(line.worker) << line.message;
  EXPECT_EQ(line.worker->controller, "127.0.0.1:7461");
  EXPECT_EQ(line.worker->metrics_listen, "127.0.0.1:7463");
  EXPECT_EQ(line.worker->checkpoint_dir, "/tmp/x/checkpoints");
  EXPECT_EQ(line.worker->cpu_devices, -1);
  EXPECT_FALSE(line.worker->id.empty());
  EXPECT_EQ(line.worker->orphan_grace, std::chrono::minutes(10));
}

TEST(OptionsTest, EveryOptionIsRead) {
  const CommandLine line = parse({"--state-dir",
                                  "/tmp/x",
                                  "--trainer",
                                  "/bin/true",
                                  "--controller",
                                  "host:1",
                                  "--id",
                                  "w-1",
                                  "--checkpoint-dir",
                                  "/tmp/c",
                                  "--cpu-devices",
                                  "2",
                                  "--memory-limit",
                                  "8GiB",
                                  "--metrics-listen",
                                  "0.0.0.0:0",
                                  "--orphan-grace",
                                  "90s",
                                  "--metrics-linger",
                                  "250ms",
                                  "--log-format",
                                  "json",
                                  "--log-level",
                                  "debug"});
  ASSERT_TRUE(line.worker) << line.message;
  EXPECT_EQ(line.worker->controller, "host:1");
  EXPECT_EQ(line.worker->id, "w-1");
  EXPECT_EQ(line.worker->checkpoint_dir, "/tmp/c");
  EXPECT_EQ(line.worker->trainer, "/bin/true");
  EXPECT_EQ(line.worker->cpu_devices, 2);
  EXPECT_EQ(line.worker->memory_limit_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(line.worker->metrics_listen, "0.0.0.0:0");
  EXPECT_EQ(line.worker->orphan_grace, std::chrono::seconds(90));
  EXPECT_EQ(line.worker->metrics_linger, std::chrono::milliseconds(250));
  EXPECT_EQ(line.worker->log_format, "json");
  EXPECT_EQ(line.worker->log_level, "debug");
}

TEST(OptionsTest, HelpHasExamplesAndEndsWell) {
  const CommandLine line = parse({"--help"});
  EXPECT_FALSE(line.worker);
  EXPECT_EQ(line.exit_code, 0);
  EXPECT_THAT(line.message, HasSubstr("Examples"));
  EXPECT_THAT(line.message, ::testing::Not(HasSubstr("supervise")));
}

struct BadLine {
  std::vector<const char*> arguments;
  const char* named;
  const char* value;
};

TEST(OptionsTest, BadValuesAreNamedWithTheirOption) {
  const BadLine lines[] = {
      {{}, "--state-dir", "required"},
      {{"--state-dir", "/tmp/x", "--trainer", "/nowhere/trainer"}, "--trainer", "/nowhere/trainer"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--id", "Not_An_Id"}, "--id", "Not_An_Id"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--controller", "nohost"},
       "--controller",
       "nohost"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--metrics-listen", "a:99999"},
       "--metrics-listen",
       "99999"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--memory-limit", "8 apples"},
       "--memory-limit",
       "8 apples"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--orphan-grace", "10"}, "--orphan-grace", "10"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--cpu-devices", "-3"}, "--cpu-devices", "-3"},
      {{"--state-dir", "/tmp/x", "--trainer", "/bin/true", "--log-format", "xml"}, "--log-format", "xml"},
      {{"--state-dri", "/tmp/x"}, "--state-dri", ""},
  };
  for (const BadLine& bad : lines) {
    const CommandLine line = parse(bad.arguments);
    EXPECT_FALSE(line.worker);
    EXPECT_EQ(line.exit_code, 2) << line.message;
    EXPECT_THAT(line.message, HasSubstr(bad.named));
    EXPECT_THAT(line.message, HasSubstr(bad.value));
  }
}

TEST(OptionsTest, SizesAndDurations) {
  EXPECT_EQ(parse_bytes("1000"), 1000);
  EXPECT_EQ(parse_bytes("1kB"), 1000);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_duration("1.5h"), std::chrono::minutes(90));
  EXPECT_EQ(parse_duration("10m"), std::chrono::minutes(10));
  for (const char* bad : {"", "GiB", "-1GiB", "0", "1gib", "nan", "1e30GiB"}) {
    EXPECT_THROW(parse_bytes(bad), std::invalid_argument) << bad;
  }
  for (const char* bad : {"", "s", "-1s", "1", "1d", "inf s"})
    EXPECT_THROW(parse_duration(bad), std::invalid_argument) << bad;
}

}  // namespace
}  // namespace coat::agent
