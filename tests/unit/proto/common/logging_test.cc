#include "proto/common/logging.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

namespace coat {
namespace {

std::string logged(const LoggingOptions& options, const std::string& message) {
  ::testing::internal::CaptureStderr();
  init_logging(options);
  spdlog::debug("not to be seen");
  spdlog::warn(message);
  spdlog::default_logger()->flush();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Logging, JsonIsOneObjectALineWhateverTheMessage) {
  const std::string message =
      "a \"b\" \\ \n\t\x01 gr\xc3\xbc"
      "n";
  const std::string line = logged({"coat-test", "json", "info"}, message);
  ASSERT_FALSE(line.empty());
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], message);
  EXPECT_EQ(json["program"], "coat-test");
  EXPECT_EQ(json["level"], "warning");
  EXPECT_THAT(json["time"].get<std::string>(),
              ::testing::MatchesRegex("....-..-..T..:..:..\\.[0-9][0-9][0-9]Z"));
}

TEST(Logging, TextNamesTimeLevelAndProgram) {
  EXPECT_THAT(logged({"coat-test", "text", "info"}, "hello"),
              ::testing::MatchesRegex(".*T.*Z warning coat-test: hello\n"));
}

TEST(Logging, BadOptionsNameTheOptionAndItsChoices) {
  const auto problem = [](const LoggingOptions& options) -> std::string {
    try {
      init_logging(options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem({"p", "xml", "info"}), "--log-format: \"xml\" is not known; use text or json");
  EXPECT_EQ(problem({"p", "text", "loud"}),
            "--log-level: \"loud\" is not known; use debug, info, warning or error");
}

}  // namespace
}  // namespace coat
