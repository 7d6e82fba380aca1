#include "worker/core/train/sampler.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/core/train/bigram_model.h"

namespace coat::train {
namespace {

constexpr const char* kBad = "\xEF\xBF\xBD";

TEST(PrintableText, KeepsWhatIsUtf8) {
  const std::string good = "plain\n\ttext \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 \xED\x9F\xBF \xEE\x80\x80";
  EXPECT_EQ(printable_text(good), good);
}

TEST(PrintableText, ReplacesWhatIsNot) {
  const std::string bad = kBad;
  EXPECT_EQ(printable_text("a\xFF"
                           "b"),
            "a" + bad + "b");
  EXPECT_EQ(printable_text("\xC3"), bad);                                // cut off
  EXPECT_EQ(printable_text("\xC3("), bad + "(");                         // no continuation
  EXPECT_EQ(printable_text("\xC0\x80"), bad + bad);                      // overlong
  EXPECT_EQ(printable_text("\xE0\x80\x80"), bad + bad + bad);            // overlong
  EXPECT_EQ(printable_text("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(printable_text("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // above U+10FFFF
}

TEST(PrintableText, LetsNoControlThrough) {
  const std::string bad = kBad;
  EXPECT_EQ(printable_text("\x1B[2J"), bad + "[2J");
  EXPECT_EQ(printable_text(std::string("\0\r\x7F", 3)), bad + bad + bad);
  EXPECT_EQ(printable_text("\xC2\x9B"), bad);
}

TEST(DrawToken, TemperatureZeroTakesTheFirstOfTheLargest) {
  const float logits[] = {1, 3, 3, 2};
  EXPECT_EQ(draw_token(logits, 4, 0, 0.99), 1);
}

// Probabilities 1/4, 1/2, 1/4: the borders of the cumulative sum are exact.
TEST(DrawToken, FollowsTheCumulativeProbabilities) {
  const float logits[] = {0, std::log(2.0F), 0};
  EXPECT_EQ(draw_token(logits, 3, 1, 0.0), 0);
  EXPECT_EQ(draw_token(logits, 3, 1, 0.24), 0);
  EXPECT_EQ(draw_token(logits, 3, 1, 0.26), 1);
  EXPECT_EQ(draw_token(logits, 3, 1, 0.74), 1);
  EXPECT_EQ(draw_token(logits, 3, 1, 0.76), 2);
  EXPECT_EQ(draw_token(logits, 3, 1, std::nextafter(1.0, 0.0)), 2);
}

TEST(DrawToken, TemperatureSharpensAndFlattens) {
  const float logits[] = {0, 1};
  const auto share_of_second = [&](double temperature) {
    int drawn = 0;
    for (int i = 0; i < 1000; ++i) drawn += draw_token(logits, 2, temperature, (i + 0.5) / 1000) == 1 ? 1 : 0;
    return drawn / 1000.0;
  };
  for (const double temperature : {0.5, 1.0, 2.0}) {
    EXPECT_NEAR(share_of_second(temperature), 1 / (1 + std::exp(-1 / temperature)), 1.5e-3);
  }
}

TEST(DrawToken, IgnoresWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float logits[] = {nan, 1, std::numeric_limits<float>::infinity()};
  for (const double uniform : {0.0, 0.5, 0.999}) EXPECT_EQ(draw_token(logits, 3, 1, uniform), 1);
  const float none[] = {nan, nan};
  EXPECT_EQ(draw_token(none, 2, 1, 0.9), 0);
}

TEST(SampleText, IsTheSameForTheSameSeed) {
  BigramModel model(256);
  const SampleOptions options{.prompt = "ab", .tokens = 50, .temperature = 1, .seed = 4};
  const std::string text = sample_text(model, options, at::kCPU);
  EXPECT_TRUE(text.starts_with("ab"));
  EXPECT_EQ(sample_text(model, options, at::kCPU), text);
  SampleOptions other = options;
  other.seed = 5;
  EXPECT_NE(sample_text(model, other, at::kCPU), text);
}

TEST(SampleText, FollowsTheModelAndEndsWhenAsked) {
  BigramModel model(256);
  auto* table = model.parameters().all()[0]->value.mutable_data_ptr<float>();
  table['a' * 256 + 'b'] = 1000;
  table['b' * 256 + 'a'] = 1000;
  const SampleOptions options{.prompt = "a", .tokens = 5, .temperature = 1, .seed = 1};
  EXPECT_EQ(sample_text(model, options, at::kCPU), "ababab");
  int asked = 0;
  EXPECT_EQ(sample_text(model, options, at::kCPU, [&] { return ++asked > 2; }), "aba");
}

}  // namespace
}  // namespace coat::train
