#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/spec/sound_spec.h"

namespace coat::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::ordered_json;

TEST(SpecJson, TheSmallestJobHasEveryDefault) {
  const ParseResult result = parse_json(sound_json().dump());
  ASSERT_THAT(result.violations, IsEmpty());
  JobSpec expected;
  expected.name = "a-job";
  expected.data.path = "/data/text";
  expected.training.steps = 100;
  EXPECT_EQ(result.spec, expected);
}

TEST(SpecJson, KvHeadsDefaultToHeads) {
  const ParseResult result = parse_with("model.heads", 8);
  ASSERT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.spec.model.kv_heads, 8);
  // Written down, they stay what was written.
  Json json = sound_json();
  json["model"] = {{"heads", 8}, {"kv_heads", 2}};
  EXPECT_EQ(parse_json(json.dump()).spec.model.kv_heads, 2);
}

// A spec in which no field has its default.
JobSpec unusual_spec() {
  JobSpec spec;
  spec.name = "x9";
  spec.recipe = "bf16";
  spec.model = {320, 96, 200, 3, 6, 2, 3e-6, 500000.5, true};
  spec.data = {"/data/ \"tokens\"", "uint16"};
  spec.training = {7, 33, 5, 3, std::numeric_limits<std::uint64_t>::max()};
  spec.optimizer = {0.1 + 0.2, "linear", 3, 0.25, 0.8, 0.999, 1e-7, 0, 0};
  spec.checkpoint = {5, 9};
  spec.metrics = {0};
  spec.sample = {"", 12, 0};
  spec.resources = {1, "cpu"};
  spec.retry = {0};
  spec.stop_grace_seconds = 1.5;
  spec.labels = {{"team",
                  "gr\xc3\xbc"
                  "n"},
                 {"a.b/c", ""}};
  return spec;
}

TEST(SpecJson, WritingAndReadingGivesTheSameSpec) {
  const JobSpec spec = unusual_spec();
  const ParseResult again = parse_json(to_json(spec));
  EXPECT_THAT(again.violations, IsEmpty()) << format_violations(again.violations);
  EXPECT_EQ(again.spec, spec);
}

TEST(SpecJson, EveryFieldIsWrittenAndListed) {
  std::set<std::string> written;
  const Json json = Json::parse(to_json(JobSpec{}));
  for (const auto& [section, value] : json.items()) {
    if (!value.is_object() || section == "labels") {
      written.insert(section);
      continue;
    }
    for (const auto& [name, unused] : value.items()) written.insert(section + "." + name);
  }
  EXPECT_EQ(written, std::set<std::string>(field_paths().begin(), field_paths().end()));
  EXPECT_EQ(written.size(), field_paths().size()) << "a path is listed twice";
}

// A field that is read but dropped would keep its default here.
TEST(SpecJson, EachFieldIsReadIntoItsOwnPlace) {
  const Json unusual = Json::parse(to_json(unusual_spec()));
  const std::string plain = to_json(parse_json(sound_json().dump()).spec);
  for (const std::string& path : field_paths()) {
    if (path == "sample.prompt" || path == "resources.devices") continue;  // no other value is sound
    const std::size_t dot = path.find('.');
    const Json value =
        dot == std::string::npos ? unusual[path] : unusual[path.substr(0, dot)][path.substr(dot + 1)];
    const ParseResult result = parse_with(path, value);
    EXPECT_NE(to_json(result.spec), plain) << path;
  }
}

TEST(SpecJson, IntegersMayBeTextsAsProtobufWritesThem) {
  EXPECT_EQ(parse_with("training.steps", "123").spec.training.steps, 123);
  EXPECT_EQ(parse_with("training.seed", "18446744073709551615").spec.training.seed,
            std::numeric_limits<std::uint64_t>::max());
}

TEST(SpecJson, NonFiniteNumbersAreReadAndRefused) {
  for (const char* value : {"NaN", "Infinity", "-Infinity"}) {
    const ParseResult result = parse_with("optimizer.learning_rate", value);
    ASSERT_THAT(result.violations, SizeIs(1));
    EXPECT_EQ(result.violations[0].field, "optimizer.learning_rate");
    EXPECT_EQ(result.violations[0].message, std::string(value) + " is not a finite number");
  }
}

struct WrongType {
  const char* path;
  Json value;
  const char* message;
  const char* fix;
};

TEST(SpecJson, WrongTypesAreNamedWithAFix) {
  const WrongType cases[] = {
      {"training.steps", "10 steps", "is the text \"10 steps\"",
       "write a whole number without a unit, for example 10"},
      {"training.steps", "ten", "is the text \"ten\"", "write a whole number, for example 1"},
      {"training.steps", 10.5, "is 10.5", "write a whole number, for example 1"},
      {"training.steps", true, "is true", "write a whole number, for example 1"},
      {"training.steps", nullptr, "is empty", "write a whole number, for example 1"},
      {"training.steps", Json::array({1}), "is a list", "write a whole number, for example 1"},
      {"training.steps", "1.5e1", "is the text \"1.5e1\"",
       "write a whole number without a unit, for example 15"},
      {"training.steps", 18446744073709551615ULL, "is 18446744073709551615",
       "write a whole number, for example 1"},
      {"training.steps", "010", "is the text \"010\"", "write a whole number without a unit, for example 10"},
      {"training.seed", -1, "is -1", "write a whole number from 0 to 18446744073709551615"},
      {"optimizer.learning_rate", "3e-4/step", "is the text \"3e-4/step\"",
       "write a number without a unit, for example 0.0003"},
      {"model.tie_embeddings", "yes", "is the text \"yes\"", "write true or false"},
      {"data.path", 5, "is 5", ""},
      {"recipe", 16, "is 16", "use coat, coat-paper or bf16"},
      {"model", 5, "is 5", ""},
      {"labels", "x", "is the text \"x\"", "write a mapping of names to texts"},
      {"labels.team", 7, "is 7", "write a text in quotes"},
  };
  for (const WrongType& wrong : cases) {
    const ParseResult result = parse_with(wrong.path, wrong.value);
    ASSERT_THAT(result.violations, SizeIs(1)) << wrong.path << "\n" << format_violations(result.violations);
    EXPECT_EQ(result.violations[0].field, wrong.path);
    EXPECT_EQ(result.violations[0].message, wrong.message) << wrong.path;
    if (*wrong.fix != '\0') {
      EXPECT_EQ(result.violations[0].fix, wrong.fix) << wrong.path;
    }
    EXPECT_FALSE(result.violations[0].fix.empty()) << wrong.path;
  }
}

TEST(SpecJson, AnUnknownFieldNamesTheNearestKnownOne) {
  const auto fix_of = [](const std::string& path) {
    const ParseResult result = parse_with(path, 1);
    EXPECT_THAT(result.violations, SizeIs(1)) << path;
    EXPECT_EQ(result.violations[0].field, path);
    return result.violations[0].fix;
  };
  EXPECT_EQ(fix_of("model.hiden"), "did you mean model.hidden?");
  EXPECT_EQ(fix_of("model.kvHeads"), "did you mean model.kv_heads?");
  EXPECT_EQ(fix_of("model.lyaers"), "did you mean model.layers?");
  EXPECT_EQ(fix_of("recpie"), "did you mean recipe?");
  // Known in another section.
  EXPECT_EQ(fix_of("steps"), "did you mean training.steps?");
  EXPECT_EQ(fix_of("model.learning_rate"), "did you mean optimizer.learning_rate?");
  EXPECT_EQ(fix_of("stpes"), "did you mean training.steps?");
  // Near to nothing: what there is.
  EXPECT_EQ(fix_of("checkpoint.frobnicate"), "known here: interval_steps or keep");
}

TEST(SpecJson, ARepeatedKeyIsNamed) {
  const ParseResult result =
      parse_json(R"({"name": "a", "data": {"path": "/x"}, "training": {"steps": 1, "seed": 2, "steps": 3}})");
  ASSERT_THAT(result.violations, SizeIs(1));
  EXPECT_EQ(result.violations[0].field, "training.steps");
  EXPECT_EQ(result.violations[0].message, "is there twice");
  // Equal names in different sections are no repetition.
  EXPECT_THAT(parse_json(R"({"name": "a", "data": {"path": "/x"}, "training": {"steps": 1},
                             "labels": {"steps": "1", "name": "b"}})")
                  .violations,
              IsEmpty());
}

TEST(SpecJson, WhatIsNoObjectIsOneViolation) {
  for (const char* text :
       {"", "{", "[]", "3", "null", "\"name\"", "{\"name\": 1e400}", "{} {}", "{\"name\": \"\xff\"}"}) {
    const ParseResult result = parse_json(text);
    ASSERT_THAT(result.violations, SizeIs(1)) << text;
    EXPECT_EQ(result.violations[0].field, "") << text;
    EXPECT_EQ(result.violations[0].fix, "send one JSON object") << text;
  }
}

TEST(SpecJson, DeepNestingIsRefusedWithoutHarm) {
  const std::string deep(100000, '[');
  EXPECT_FALSE(parse_json("{\"model\": " + deep).ok());
  EXPECT_FALSE(parse_json("{\"model\": " + deep + std::string(100000, ']') + "}").ok());
}

TEST(SpecJson, ViolationsComeInTheOrderOfTheFields) {
  const ParseResult result = parse_json(
      R"({"zzzzz": 1, "training": {"steps": 0, "qqqqqq": 1}, "optimizer": {"beta1": 2}, "name": "B", "model": {"layers": "x"}})");
  std::vector<std::string> fields;
  for (const Violation& violation : result.violations) fields.push_back(violation.field);
  EXPECT_THAT(fields, ElementsAre("name", "model.layers", "data.path", "training.steps", "training.qqqqqq",
                                  "optimizer.beta1", "zzzzz"));
}

TEST(SpecJson, RequiredFieldsAreAskedForWithAnExample) {
  EXPECT_EQ(format_violations(parse_json("{}").violations),
            "name: is required; add it, for example name = my-job\n"
            "data.path: is required; add it, for example data.path = /data/text.txt\n"
            "training.steps: is required; add it, for example training.steps = 100\n");
}

}  // namespace
}  // namespace coat::spec
