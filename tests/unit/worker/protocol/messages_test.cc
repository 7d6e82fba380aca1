#include "worker/protocol/messages.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace coat::protocol {
namespace {

using testing::HasSubstr;

Estimate sample_estimate() {
  return {.recipe = "coat",
          .memory = {1, 2, 3, 4, 5, 6, 21},
          .memory_bf16 = {7, 8, 9, 10, 11, 12, 57},
          .parameters = 3'300'000,
          .device_memory_bytes = 8'000'000'000'000,
          .fits = true,
          .saved_bytes_per_token_per_layer = 2047.25,
          .data_tokens = 4'400'000};
}

std::vector<QuantizationError> sample_errors() {
  return {{"activation", "e4m3", 0.021, 1e-7, 0.25, 0, {}},
          {"moment2", "e4m3", 0.011, 0, 0, 9.5, {{8, 0.5}, {16, 1}}}};
}

Step sample_step() {
  return {.step = 12,
          .loss = 0.1 + 0.2,
          .grad_norm = 5e-324,
          .learning_rate = 1.7976931348623157e308,
          .tokens_per_second = 5000,
          .tokens = std::numeric_limits<std::int64_t>::max(),
          .memory_bytes = 1,
          .memory_reserved_bytes = 2,
          .memory_peak_bytes = 3,
          .nonfinite_steps = 4,
          .remaining_seconds = 6.5,
          .quantization = sample_errors()};
}

Summary sample_summary() {
  return {.first_loss = 5.5,
          .last_loss = 1.25,
          .unigram_entropy = 3.0,
          .steps = 100,
          .tokens = 204800,
          .tokens_per_second = 4321,
          .wall_seconds = 60,
          .parameters = 9,
          .memory = {1, 2, 3, 4, 5, 6, 21},
          .memory_bf16 = {1, 1, 1, 1, 1, 1, 6},
          .memory_peak_bytes = 22,
          .quantization = sample_errors(),
          .sample = "In the \"beginning\"\n\t\\ \xC3\xA4",
          .checkpoint_path = "/c/step-00000100",
          .checkpoint_step = 100};
}

std::string reason_of(const std::string& line) {
  try {
    parse_event(line);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Messages, EveryEventComesBackUnchanged) {
  const std::vector<Event> events = {
      Started{400, 100, 3.1, sample_estimate()}, sample_step(),
      Checkpoint{100, "/c/step-00000100", 1 << 20, 0.5}, sample_summary(),
      Failure{64, "model.hidden: 0 is too small", "model.hidden", "write at least 1"}};
  for (const Event& event : events) {
    const std::string line = to_line(event);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(parse_event(line), event) << line;
  }
}

TEST(Messages, EveryCommandComesBackUnchanged) {
  for (const Command& command : std::vector<Command>{SaveCheckpoint{}, StopAfterCheckpoint{}}) {
    EXPECT_EQ(parse_command(to_line(command)), command);
  }
  EXPECT_EQ(to_line(Command{StopAfterCheckpoint{}}), R"({"command":"stop_after_checkpoint"})");
}

TEST(Messages, EstimateComesBackUnchanged) {
  EXPECT_EQ(parse_estimate(to_line(sample_estimate())), sample_estimate());
}

TEST(Messages, NonFiniteNumbersAreStrings) {
  Step step = sample_step();
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.grad_norm = HUGE_VAL;
  step.learning_rate = -HUGE_VAL;
  const std::string line = to_line(step);
  EXPECT_THAT(line, HasSubstr(R"("loss":"NaN")"));
  EXPECT_THAT(line, HasSubstr(R"("grad_norm":"Infinity")"));
  EXPECT_THAT(line, HasSubstr(R"("learning_rate":"-Infinity")"));
  const auto back = std::get<Step>(parse_event(line));
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.grad_norm, HUGE_VAL);
  EXPECT_EQ(back.learning_rate, -HUGE_VAL);
}

TEST(Messages, BytesThatAreNoUtf8AreReplaced) {
  Failure failure{70, "bad \xFF byte", "", ""};
  EXPECT_EQ(std::get<Failure>(parse_event(to_line(failure))).message, "bad \xEF\xBF\xBD byte");
}

TEST(Messages, RefusesWhatIsNotTheContract) {
  EXPECT_THAT(reason_of("no json"), HasSubstr("not JSON"));
  EXPECT_THAT(reason_of("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(reason_of("{}"), HasSubstr("'event' is missing"));
  EXPECT_THAT(reason_of(R"({"event":3})"), HasSubstr("'event' must be a string"));
  EXPECT_THAT(reason_of(R"({"event":"strated"})"), HasSubstr("unknown event 'strated'"));
  const std::string good = to_line(Event{Checkpoint{1, "/c", 2, 0.5}});
  EXPECT_EQ(reason_of(good), "accepted");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = good;
    const std::size_t at = line.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return reason_of(line.replace(at, from.size(), to));
  };
  EXPECT_THAT(with(R"("bytes":2,)", ""), HasSubstr("'bytes' is missing"));
  EXPECT_THAT(with(R"("bytes":2,)", R"("bytes":2,"extra":1,)"), HasSubstr("'extra' is unknown"));
  EXPECT_THAT(with(R"("bytes":2,)", R"("bytes":2,"bytes":3,)"), HasSubstr("'bytes' appears twice"));
  EXPECT_THAT(with(R"("bytes":2,)", R"("bytes":2.5,)"), HasSubstr("'bytes' must be an integer"));
  EXPECT_THAT(with(R"("bytes":2,)", R"("bytes":"2",)"), HasSubstr("'bytes' must be an integer"));
  EXPECT_THAT(with(R"("bytes":2,)", R"("bytes":18446744073709551615,)"), HasSubstr("'bytes' does not fit"));
  EXPECT_THAT(with(R"("path":"/c")", R"("path":null)"), HasSubstr("'path' must be a string"));
  EXPECT_THAT(with(R"("seconds":0.5)", R"("seconds":"soon")"), HasSubstr("'seconds' must be a number"));
}

TEST(Messages, NamesTheNestedField) {
  std::string line = to_line(Event{sample_step()});
  const std::string from = R"("format":"e4m3")";
  line.replace(line.find(from), from.size(), R"("format":4)");
  EXPECT_THAT(reason_of(line), HasSubstr("'quantization[0].format' must be a string"));
  std::string estimate = to_line(sample_estimate());
  estimate.replace(estimate.find("total_bytes"), 11, "sum_bytes__");
  EXPECT_THROW(parse_estimate(estimate), std::invalid_argument);
}

TEST(Messages, CommandsAndEventsAreApart) {
  EXPECT_THROW(parse_command(R"({"command":"stop"})"), std::invalid_argument);
  EXPECT_THROW(parse_command(R"({"command":"save_checkpoint","now":true})"), std::invalid_argument);
  EXPECT_THROW(parse_command(to_line(Event{Failure{}})), std::invalid_argument);
}

TEST(Messages, MetricLineIsASampleWithItsTime) {
  const auto line = nlohmann::json::parse(to_metric_line(sample_step(), 1'000'000'000.25));
  EXPECT_EQ(line.at("sample_time"), "2001-09-09T01:46:40.250Z");
  EXPECT_EQ(line.at("step"), 12);
  EXPECT_FALSE(line.contains("remaining_seconds"));
  EXPECT_FALSE(line.contains("event"));
  EXPECT_EQ(line.at("quantization").size(), 2u);
  EXPECT_EQ(line.at("quantization")[1].at("mean_expansion"), 9.5);
  // Every name that coat.v1.MetricSample has, and no other.
  std::vector<std::string> names;
  for (const auto& item : line.items()) names.push_back(item.key());
  EXPECT_THAT(names, testing::UnorderedElementsAre("step", "sample_time", "loss", "grad_norm",
                                                   "learning_rate", "tokens_per_second", "tokens",
                                                   "memory_bytes", "memory_reserved_bytes",
                                                   "memory_peak_bytes", "nonfinite_steps", "quantization"));
}

}  // namespace
}  // namespace coat::protocol
