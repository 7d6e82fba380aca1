#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spec/fields.h"
#include "tests/unit/spec/sound_spec.h"

namespace coat::spec {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

JobSpec sound() { return parse_json(sound_json().dump()).spec; }

// The one violation of a changed sound job; its field is told on failure.
template <typename Change>
Violation only_violation(Change&& change) {
  JobSpec spec = sound();
  change(spec);
  const std::vector<Violation> violations = validate(spec);
  EXPECT_THAT(violations, SizeIs(1)) << format_violations(violations);
  return violations.empty() ? Violation{} : violations.front();
}

TEST(SpecRules, ASoundJobHasNoViolation) { EXPECT_THAT(validate(sound()), IsEmpty()); }

// Both ends of each range, taken from the table itself: the end is sound, the step beyond is refused at that
// field.
TEST(SpecRules, EveryIntegerHasBothLimits) {
  JobSpec probe = sound();
  std::vector<std::pair<std::string, IntegerRule>> rules;
  visit_fields(probe, [&](const char* path, auto&, const auto& rule) {
    if constexpr (std::is_same_v<std::decay_t<decltype(rule)>, IntegerRule>) rules.emplace_back(path, rule);
  });
  EXPECT_THAT(rules, SizeIs(17));
  for (const auto& [path, rule] : rules) {
    for (const std::int64_t beyond : {rule.min - 1, rule.max + 1, std::numeric_limits<std::int64_t>::min(),
                                      std::numeric_limits<std::int64_t>::max()}) {
      const ParseResult result = parse_with(path, beyond);
      ASSERT_THAT(result.violations, SizeIs(1)) << path << " = " << beyond;
      EXPECT_EQ(result.violations[0].field, path);
      EXPECT_EQ(result.violations[0].message,
                std::to_string(beyond) + (beyond < rule.min ? " is too small" : " is too large"));
    }
  }
}

TEST(SpecRules, EveryRealRefusesWhatIsNotFinite) {
  JobSpec probe = sound();
  std::size_t reals = 0;
  visit_fields(probe, [&](const char* path, auto& value, const auto& rule) {
    if constexpr (std::is_same_v<std::decay_t<decltype(rule)>, RealRule>) {
      ++reals;
      for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        const double before = value;
        value = bad;
        const std::vector<Violation> violations = validate(probe);
        ASSERT_THAT(violations, SizeIs(1)) << path;
        EXPECT_EQ(violations[0].field, path);
        value = before;
      }
    }
  });
  EXPECT_EQ(reals, 11U);
}

struct RealCase {
  const char* path;
  double value;
  const char* text;  // empty: sound
};

TEST(SpecRules, RatesAndBetas) {
  const RealCase cases[] = {
      {"optimizer.learning_rate", -1e-3, "-0.001 is negative; use a number above 0"},
      {"optimizer.learning_rate", 0, "0 is too small; use a number above 0"},
      {"optimizer.learning_rate", 1e30, ""},
      {"optimizer.beta1", 1, "1 is too large; use a number of at least 0 and below 1"},
      {"optimizer.beta1", 0, ""},
      {"optimizer.beta2", -0.1, "-0.1 is negative; use a number of at least 0 and below 1"},
      {"optimizer.beta2", std::nextafter(1.0, 0.0), ""},
      {"optimizer.eps", 0, "0 is too small; use a number above 0 and at most 1"},
      {"optimizer.weight_decay", -0.1, "-0.1 is negative; use a number of 0 or more"},
      {"optimizer.clip_norm", -1, "-1 is negative; use a number of 0 or more"},
      {"optimizer.clip_norm", 0, ""},
      {"optimizer.final_lr_fraction", 1.5, "1.5 is too large; use a number of at least 0 and at most 1"},
      {"model.norm_eps", 0, "0 is too small; use a number above 0 and at most 1"},
      {"sample.temperature", -1, "-1 is negative; use a number of at least 0 and at most 100"},
      {"stop_grace_seconds", 4000, "4000 is too large; use a number of at least 0 and at most 3600"},
  };
  for (const RealCase& entry : cases) {
    const ParseResult result = parse_with(entry.path, entry.value);
    const std::string expected =
        *entry.text == '\0' ? std::string() : std::string(entry.path) + ": " + entry.text + "\n";
    EXPECT_EQ(format_violations(result.violations), expected);
  }
}

TEST(SpecRules, Names) {
  for (const std::string& good :
       {std::string("a"), std::string("a-b"), std::string("0"), std::string(40, 'x')}) {
    EXPECT_TRUE(parse_with("name", good).ok()) << good;
  }
  const std::pair<std::string, std::string> bad[] = {
      {"My Job", "my-job"},
      {"-a-", "a"},
      {"a_b", "a-b"},
      {"...", "my-job"},
      {"a/b", "a-b"},
      {"jobs/a", "jobs-a"},
      {std::string(41, 'x'), std::string(40, 'x')},
      {std::string(39, 'x') + "--y", std::string(39, 'x')},
  };
  for (const auto& [name, better] : bad) {
    const ParseResult result = parse_with("name", name);
    ASSERT_THAT(result.violations, SizeIs(1)) << name;
    EXPECT_EQ(result.violations[0].field, "name");
    EXPECT_EQ(result.violations[0].fix, "use for example " + better);
    EXPECT_TRUE(parse_with("name", better).ok()) << "the fix must be sound: " << better;
  }
}

TEST(SpecRules, AnUnknownRecipeGetsTheList) {
  const Violation violation = only_violation([](JobSpec& spec) { spec.recipe = "coatt"; });
  EXPECT_EQ(violation, (Violation{"recipe", "\"coatt\" is not known (did you mean coat?)",
                                  "use coat, coat-paper or bf16"}));
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.recipe = ""; }).field, "recipe");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.optimizer.schedule = "cosin"; }).message,
            "\"cosin\" is not known (did you mean cosine?)");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.data.format = "int32"; }).fix,
            "use bytes, uint16 or uint32");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.resources.device = "gpu"; }).fix,
            "use auto, cpu or cuda");
}

TEST(SpecRules, HiddenFollowsTheHeads) {
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.model.hidden = 250; }),
            (Violation{"model.hidden", "hidden 250 is not divisible by heads 4", "use 248 or 256"}));
  EXPECT_EQ(
      only_violation([](JobSpec& spec) { spec.model.hidden = 252; }),
      (Violation{"model.hidden", "hidden 252 over heads 4 is an odd head size of 63", "use 248 or 256"}));
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.model.hidden = 4; }).fix, "use 8");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.model.kv_heads = 3; }),
            (Violation{"model.kv_heads", "heads 4 is not divisible by kv_heads 3", "use 2 or 4"}));
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.model.kv_heads = 8; }).fix, "use 4");
}

TEST(SpecRules, ProposedSizesAreSound) {
  for (std::int64_t hidden = 2; hidden < 400; ++hidden) {
    for (const std::int64_t heads : {1, 3, 4, 7}) {
      JobSpec spec = sound();
      spec.model.hidden = hidden;
      spec.model.heads = spec.model.kv_heads = heads;
      const std::vector<Violation> violations = validate(spec);
      if (hidden % heads == 0 && hidden / heads % 2 == 0) {
        EXPECT_THAT(violations, IsEmpty());
        continue;
      }
      ASSERT_THAT(violations, SizeIs(1));
      const std::string& fix = violations[0].fix;
      spec.model.hidden = std::stoll(fix.substr(fix.rfind(' ') + 1));
      EXPECT_THAT(validate(spec), IsEmpty()) << fix;
    }
  }
}

TEST(SpecRules, StepsAndWarmUp) {
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.training.steps = 0; }),
            (Violation{"training.steps", "0 is too small", "use 1 or more"}));
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.optimizer.warmup_steps = 101; }),
            (Violation{"optimizer.warmup_steps", "a warm-up of 101 steps is longer than the run of 100",
                       "use at most 100"}));
  JobSpec spec = sound();
  spec.optimizer.warmup_steps = 100;
  EXPECT_THAT(validate(spec), IsEmpty());
}

TEST(SpecRules, ALargeStepIsRefusedBeforeItOverflows) {
  JobSpec spec = sound();
  spec.training.sequence_length = 1 << 20;
  spec.training.micro_batch = 1 << 16;
  spec.training.accumulation_steps = 1 << 16;
  ASSERT_THAT(validate(spec), SizeIs(1));
  EXPECT_EQ(validate(spec)[0].field, "training.micro_batch");
  EXPECT_EQ(validate(spec)[0].fix, "use at most 256");
  spec.training.micro_batch = 256;
  EXPECT_EQ(validate(spec)[0].field, "training.accumulation_steps");
  EXPECT_EQ(validate(spec)[0].fix, "use at most 16");
  spec.training.accumulation_steps = 16;
  EXPECT_THAT(validate(spec), IsEmpty());
  // The largest run that is let in has a number of tokens that 64 bits hold.
  const std::int64_t step =
      spec.training.sequence_length * spec.training.micro_batch * spec.training.accumulation_steps;
  EXPECT_LE(step, std::numeric_limits<std::int64_t>::max() / kMaxSteps);
}

TEST(SpecRules, DataAndPrompt) {
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.data.path = ""; }).message, "is empty");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.data.path = std::string("a\0b", 3); }).message,
            "holds a NUL byte");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.data.path = std::string(4097, 'a'); }).message,
            "has 4097 bytes");
  EXPECT_EQ(only_violation([](JobSpec& spec) {
              spec.data.format = "uint16";
              spec.sample.prompt = "Hello";
            }),
            (Violation{"sample.prompt", "a prompt is text, and data.format uint16 holds token ids",
                       "delete sample.prompt"}));
  EXPECT_EQ(only_violation([](JobSpec& spec) {
              spec.model.vocab_size = 100;
              spec.sample.prompt = "An e";
            }).message,
            "holds the byte 110, outside vocab_size 100");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.sample.prompt = std::string(70000, 'a'); }).field,
            "sample.prompt");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.model.vocab_size = 1; }).field, "model.vocab_size");
}

TEST(SpecRules, OneDevice) {
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.resources.devices = 2; }),
            (Violation{"resources.devices", "2 devices are asked for",
                       "use 1: this release trains a job on one device"}));
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.resources.devices = 0; }).fix, "use 1 or more");
}

TEST(SpecRules, Labels) {
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.labels[""] = "x"; }).message,
            "the key \"\" is no label key");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.labels["a b"] = "x"; }).field, "labels");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.labels[std::string(64, 'a')] = "x"; }).field, "labels");
  EXPECT_EQ(only_violation([](JobSpec& spec) { spec.labels["a"] = std::string(64, 'x'); }).field, "labels.a");
  EXPECT_EQ(only_violation([](JobSpec& spec) {
              for (int i = 0; i < 65; ++i) spec.labels[std::to_string(i)] = "x";
            }).message,
            "has 65 entries");
}

TEST(SpecRules, AFieldThatCannotBeReadDoesNotCauseSecondComplaints) {
  const ParseResult result = parse_with("model.heads", "four");
  ASSERT_THAT(result.violations, SizeIs(1)) << format_violations(result.violations);
  EXPECT_EQ(result.violations[0].field, "model.heads");
}

TEST(SpecRules, TextsInMessagesAreShortAndPrintable) {
  const Violation violation =
      only_violation([](JobSpec& spec) { spec.name = "\x1b[31m" + std::string(500, 'A'); });
  EXPECT_LT(violation.message.size(), 200U);
  EXPECT_EQ(violation.message.find('\x1b'), std::string::npos);
}

TEST(NearestName, ASlipOfTheHandIsForgivenAndANewWordIsNot) {
  const std::vector<std::string> known = {"hidden", "heads", "kv_heads", "layers"};
  EXPECT_EQ(nearest_name("hiden", known), "hidden");
  EXPECT_EQ(nearest_name("HEADS", known), "heads");
  EXPECT_EQ(nearest_name("kv-heads", known), "kv_heads");
  EXPECT_EQ(nearest_name("lyaers", known), "layers");
  EXPECT_EQ(nearest_name("optimizer", known), std::nullopt);
  EXPECT_EQ(nearest_name("", known), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'h'), known), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

TEST(NumberText, ReadsBackAsTheSameNumber) {
  for (const double value : {0.1 + 0.2, 1e-5, 3e-4, 1.0, 5e-324, 1.7976931348623157e308}) {
    EXPECT_EQ(std::strtod(number_text(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(number_text(0.0003), "0.0003");
  EXPECT_EQ(number_text(-HUGE_VAL), "-Infinity");
}

}  // namespace
}  // namespace coat::spec
