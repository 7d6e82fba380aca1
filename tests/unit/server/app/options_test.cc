#include "server/app/options.h"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace coat::app {
namespace {

using std::chrono::milliseconds;

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "coat-controller");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST(Options, Defaults) {
  const CommandLine line = parse({"--state-dir", "/tmp/s"});
  ASSERT_TRUE(line.options) << line.message;
  EXPECT_EQ(line.options->listen, "127.0.0.1:7460");
  EXPECT_EQ(line.options->worker_listen, "127.0.0.1:7461");
  EXPECT_EQ(line.options->metrics_listen, "127.0.0.1:7462");
  EXPECT_EQ(line.options->heartbeat_interval, milliseconds(5000));
  EXPECT_EQ(line.options->lease, milliseconds(15000));
  EXPECT_EQ(line.options->fence_after, milliseconds(30000));
}

TEST(Options, BadUsageNamesTheOption) {
  const std::vector<std::pair<std::vector<const char*>, std::string>> rows = {
      {{}, "--state-dir"},
      {{"--state-dir", "s", "--listen", "7460"}, "--listen"},
      {{"--state-dir", "s", "--listen", "::1:7460"}, "--listen"},
      {{"--state-dir", "s", "--worker-listen", "h:70000"}, "--worker-listen"},
      {{"--state-dir", "s", "--metrics-listen", "h:x"}, "--metrics-listen"},
      {{"--state-dir", "s", "--lease", "15"}, "--lease"},
      {{"--state-dir", "s", "--lease", "6s"}, "--lease"},
      {{"--state-dir", "s", "--fence-after", "-1s"}, "--fence-after"},
      {{"--state-dir", "s", "--heartbeat-interval", "1ms"}, "--heartbeat-interval"},
      {{"--state-dir", "s", "--log-format", "xml"}, "--log-format"},
      {{"--state-dir", "s", "--log-level", "loud"}, "--log-level"},
      {{"--state-dir", "s", "--no-such-option"}, "--no-such-option"},
  };
  for (const auto& [arguments, option] : rows) {
    const CommandLine line = parse(arguments);
    EXPECT_FALSE(line.options) << option;
    EXPECT_EQ(line.exit_code, 2) << option;
    EXPECT_NE(line.message.find(option), std::string::npos) << line.message;
  }
}

TEST(Options, HelpTeachesAndEndsWithZero) {
  const CommandLine line = parse({"--help"});
  EXPECT_EQ(line.exit_code, 0);
  EXPECT_NE(line.message.find("Examples:"), std::string::npos);
  for (const char* option :
       {"--state-dir", "--listen", "--worker-listen", "--metrics-listen", "--heartbeat-interval", "--lease",
        "--fence-after", "--log-format", "--log-level"}) {
    EXPECT_NE(line.message.find(option), std::string::npos) << option;
  }
  EXPECT_NE(parse({"--version"}).message.find("coat-controller "), std::string::npos);
}

TEST(Options, Durations) {
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("1.5s"), milliseconds(1500));
  EXPECT_EQ(parse_duration("2m"), milliseconds(120000));
  EXPECT_EQ(parse_duration("1h"), milliseconds(3600000));
  for (const char* bad : {"", "s", "5", "5 s", "5d", "-1s", "nans", "infs", "1e300s"}) {
    EXPECT_THROW(parse_duration(bad), std::invalid_argument) << bad;
  }
}

TEST(Options, Addresses) {
  EXPECT_EQ(parse_address("--listen", "127.0.0.1:0").port, 0);
  EXPECT_EQ(parse_address("--listen", "[::1]:7460").host, "::1");
  EXPECT_EQ(parse_address("--listen", "localhost:80").host, "localhost");
  for (const char* bad : {"", ":80", "h", "h:", "h:-1", "h:65536", "h:8x"}) {
    EXPECT_THROW(parse_address("--listen", bad), std::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace coat::app
