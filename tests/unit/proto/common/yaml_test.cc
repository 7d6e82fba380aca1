// The catalogue of what can be wrong with a job file, and what a person is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/common/message_json.h"
#include "proto/common/spec_conversion.h"

namespace coat {
namespace {

using ::testing::HasSubstr;
using Overrides = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kSound = "name: a-job\ndata:\n  path: /data/text\ntraining:\n  steps: 100\n";

std::string problems(const std::string& text, const Overrides& overrides = {}) {
  const auto result = parse_yaml(text, "job.yaml", overrides);
  if (result.ok()) return "";
  EXPECT_EQ(result.error().code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(result.error().reason, "INVALID_FIELD");
  return format_for_people(result.error());
}

// JSON of the message of a sound file.
std::string message_of(const std::string& text, const Overrides& overrides = {}) {
  const auto result = parse_yaml(text, "job.yaml", overrides);
  if (!result.ok()) {
    ADD_FAILURE() << format_for_people(result.error());
    return "";
  }
  return message_to_json(result.value(), false);
}

TEST(YamlJobFile, OnlyWhatIsWrittenIsSet) {
  EXPECT_EQ(message_of(kSound),
            R"({"name":"a-job","data":{"path":"/data/text"},"training":{"steps":"100"}})");
}

TEST(YamlJobFile, ScalarsFollowTheFieldsType) {
  const std::string text = std::string(kSound) +
                           "labels: {version: 1.10, on: yes, empty: ''}\nsample: {prompt: 12, tokens: 1e2}\n"
                           "optimizer: {learning_rate: 3e-4, beta1: .5, weight_decay: 0, eps: 1.e-8}\n"
                           "model: {tie_embeddings: True, rope_theta: +10000}\n";
  EXPECT_EQ(
      message_of(text),
      R"({"name":"a-job","model":{"rope_theta":10000,"tie_embeddings":true},"data":{"path":"/data/text"},)"
      R"("training":{"steps":"100"},"optimizer":{"learning_rate":0.0003,"beta1":0.5,"eps":1e-08,"weight_decay":0},)"
      R"("sample":{"prompt":"12","tokens":"100"},"labels":{"empty":"","on":"yes","version":"1.10"}})");
}

TEST(YamlJobFile, SixtyFourBitsAreKept) {
  const std::string text = std::string(kSound) + "  seed: 18446744073709551615\n";
  EXPECT_EQ(parse_yaml(text, "f", {}).value().training().seed(), 18446744073709551615ULL);
}

TEST(YamlJobFile, BlocksAndJsonAreYaml) {
  const std::string text = std::string(kSound) + "sample:\n  prompt: |\n    And God\n    said\n";
  EXPECT_EQ(parse_yaml(text, "f", {}).value().sample().prompt(), "And God\nsaid\n");
  EXPECT_EQ(message_of(R"({"name": "a-job", "data": {"path": "/data/text"}, "training": {"steps": 100}})"),
            message_of(kSound));
}

struct Wrong {
  const char* lines;  // after the sound file
  const char* told;
};

TEST(YamlJobFile, OneMistakeIsToldWithFieldLineAndFix) {
  const Wrong cases[] = {
      {"  stpes: 3\n", "training.stpes: is not a known field (line 6); did you mean training.steps?\n"},
      {"steps: 3\n", "steps: is not a known field (line 6); did you mean training.steps?\n"},
      {"  steps: 200\n", "training.steps: is there twice, first in line 5 (line 6); keep one of them\n"},
      {"name: other\n", "name: is there twice, first in line 1 (line 6); keep one of them\n"},
      {"labels: {a: 1, a: 2}\n", "labels.a: is there twice, first in line 6 (line 6); keep one of them\n"},
      {"  micro_batch: 8 sequences\n",
       "training.micro_batch: is the text \"8 sequences\" (line 6); write a whole number without a unit, for "
       "example 8\n"},
      {"  micro_batch: \"8\"\n",
       "training.micro_batch: is the text \"8\" (line 6); write 8 without quotes\n"},
      {"  micro_batch: 0x8\n",
       "training.micro_batch: is the text \"0x8\" (line 6); write a whole number without a unit, for example "
       "0\n"},
      {"  micro_batch: 1_000\n",
       "training.micro_batch: is the text \"1_000\" (line 6); write a whole number without a unit, for "
       "example 1\n"},
      {"  micro_batch: 010\n",
       "training.micro_batch: is the text \"010\" (line 6); write a whole number without a unit, for example "
       "10\n"},
      {"  micro_batch: 2.5\n",
       "training.micro_batch: is 2.5 (line 6); write a whole number, for example 1\n"},
      {"  micro_batch: 99999999999999999999\n",
       "training.micro_batch: is the text \"99999999999999999999\" (line 6); write a whole number, for "
       "example 1\n"},
      {"  micro_batch: [8]\n",
       "training.micro_batch: is a list (line 6); write a whole number, for example 1\n"},
      {"  micro_batch:\n", "training.micro_batch: is empty (line 6); write a whole number, for example 1\n"},
      {"  micro_batch: -1\n", "training.micro_batch: -1 is too small (line 6); use 1 or more\n"},
      {"model: {tie_embeddings: yes}\n",
       "model.tie_embeddings: is the text \"yes\" (line 6); write true or false\n"},
      {"model: {hidden: 250}\n",
       "model.hidden: hidden 250 is not divisible by heads 4 (line 6); use 248 or 256\n"},
      {"model: {kv_heads: 3}\n",
       "model.kv_heads: heads 4 is not divisible by kv_heads 3 (line 6); use 2 or 4\n"},
      {"recipe: coot\n",
       "recipe: \"coot\" is not known (did you mean coat?) (line 6); use coat, coat-paper or bf16\n"},
      {"optimizer: {learning_rate: .nan}\n",
       "optimizer.learning_rate: NaN is not a finite number (line 6); use a number above 0\n"},
      {"optimizer: {learning_rate: 1e999}\n",
       "optimizer.learning_rate: Infinity is not a finite number (line 6); use a number above 0\n"},
      {"optimizer: {learning_rate: -1e-3}\n",
       "optimizer.learning_rate: -0.001 is negative (line 6); use a number above 0\n"},
      {"optimizer: {warmup_steps: 200}\n",
       "optimizer.warmup_steps: a warm-up of 200 steps is longer than the run of 100 (line 6); use at most "
       "100\n"},
      {"retry: &r {max_retries: 1}\n", "retry: is an anchor (&) (line 6); write the value itself\n"},
      {"retry: {max_retries: !!int 1}\n",
       "retry.max_retries: is the tag tag:yaml.org,2002:int (line 6); write the value itself\n"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_EQ(problems(std::string(kSound) + wrong.lines), wrong.told) << wrong.lines;
  }
}

TEST(YamlJobFile, AnAliasAndALoopAreRefused) {
  EXPECT_THAT(problems(std::string(kSound) + "labels: &l {a: *l}\n"),
              HasSubstr("labels: is an anchor (&) (line 6)"));
  EXPECT_THAT(problems(std::string(kSound) + "labels: {a: &x 1, b: *x}\n"),
              HasSubstr("labels.b: is an alias (*) (line 6)"));
}

TEST(YamlJobFile, AllMistakesAreToldAtOnceInTheOrderOfTheFields) {
  EXPECT_EQ(
      problems("optimizer: {beta1: 1}\nname: A\nmodel: {layers: x}\n"),
      "5 problems: name, model.layers, data.path, training.steps, optimizer.beta1\n"
      "  name: \"A\" is no name: 1 to 40 of a-z, 0-9 and '-', not at its ends (line 2); use for example a\n"
      "  model.layers: is the text \"x\" (line 3); write a whole number, for example 1\n"
      "  data.path: is required; add it, for example data.path = /data/text.txt\n"
      "  training.steps: is required; add it, for example training.steps = 100\n"
      "  optimizer.beta1: 1 is too large (line 1); use a number of at least 0 and below 1\n");
}

TEST(YamlJobFile, WhatIsNoJobFileIsToldOfTheFile) {
  const Wrong cases[] = {
      {"", "job.yaml: is empty; write at least name, data.path and training.steps\n"},
      {"# only words\n", "job.yaml: is empty; write at least name, data.path and training.steps\n"},
      {"- name: x\n", "job.yaml: is not a mapping of fields (line 1); write lines such as `name: my-job`\n"},
      {"name\n", "job.yaml: is not a mapping of fields (line 1); write lines such as `name: my-job`\n"},
      {"name: a\n---\nname: b\n", "job.yaml: a second document begins (line 2); keep one job in a file\n"},
      {"? [a]\n: 3\n", "job.yaml: a key is not a plain name (line 1); write `name: value`\n"},
      {"name: a\n\tb: c\n",
       "job.yaml: is not YAML: illegal tab when looking for indentation (line 2); look at the indentation "
       "and quotes "
       "around this line\n"},
      {"name: \"a\n", "job.yaml: a quote is opened and not closed (line 1); close it\n"},
      {"name: b\nrecipe: 'it''s\n", "job.yaml: a quote is opened and not closed (line 2); close it\n"},
      {"name: \xff\xfe\n", "job.yaml: is not UTF-8 text; save it as UTF-8\n"},
  };
  for (const Wrong& wrong : cases) EXPECT_EQ(problems(wrong.lines), wrong.told) << wrong.lines;
  EXPECT_EQ(problems(std::string("name: a\0b\n", 10)), "job.yaml: holds NUL bytes; write it as UTF-8 text\n");
}

TEST(YamlJobFile, AnEnormousOrDeepFileIsRefusedWithoutHarm) {
  const std::string large = std::string(kSound) + "# " + std::string(1 << 20, 'x');
  EXPECT_THAT(problems(large), HasSubstr("is it a job file?; at most 1 MiB is read"));
  EXPECT_NE(problems("name: " + std::string(500000, '[')), "");
  EXPECT_NE(problems("name: " + std::string(200000, '{')), "");
}

TEST(YamlJobFile, QuotesOfEveryKind) {
  const auto prompt = [](const std::string& scalar) {
    return parse_yaml(std::string(kSound) + "sample: {prompt: " + scalar + "}\n", "f", {})
        .value()
        .sample()
        .prompt();
  };
  EXPECT_EQ(prompt(R"("a \"b\" \\")"), R"(a "b" \)");
  EXPECT_EQ(prompt("'it''s'"), "it's");
  EXPECT_EQ(prompt("\"gr\xc3\xbc\xc3\x9f\""), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(prompt("it's"), "it's");
  // What stands before has more bytes than characters.
  const std::string umlauts = "# \xc3\xa4\xc3\xb6\xc3\xbc \"\xc3\x9f\nlabels: {a: \"\xc3\xbc\", b: \"x\"}\n";
  EXPECT_EQ(problems("\xef\xbb\xbf" + umlauts + kSound), "");
  EXPECT_EQ(problems(umlauts + kSound + "recipe: \"coat\n"),
            "job.yaml: a quote is opened and not closed (line 8); close it\n");
}

TEST(YamlOverrides, ChangeAndAddFields) {
  const Overrides overrides = {{"training.steps", "5"},       {"name", "other"},
                               {"sample.prompt", "a: b # c"}, {"labels.team", "7"},
                               {"data.path", "'/x y'"},       {"model.tie_embeddings", "true"},
                               {"training.steps", "6"}};
  EXPECT_EQ(
      message_of(kSound, overrides),
      R"({"name":"other","model":{"tie_embeddings":true},"data":{"path":"/x y"},"training":{"steps":"6"},)"
      R"("sample":{"prompt":"a: b # c"},"labels":{"team":"7"}})");
}

TEST(YamlOverrides, MendAFile) {
  EXPECT_NE(problems("name: a\ndata: {path: /x}\n"), "");
  EXPECT_EQ(problems("name: a\ndata: {path: /x}\n", {{"training.steps", "3"}}), "");
}

TEST(YamlOverrides, MistakesNameTheOption) {
  EXPECT_EQ(problems(kSound, {{"training.stps", "5"}}),
            "training.stps: is not a field that --set can change; did you mean training.steps?\n");
  EXPECT_EQ(problems(kSound, {{"training", "5"}}),
            "training: is not a field that --set can change; see `coat submit --help`\n");
  EXPECT_EQ(problems(kSound, {{"labels", "a"}}),
            "labels: is not a field that --set can change; write --set labels.KEY=VALUE\n");
  EXPECT_EQ(problems(kSound, {{"training.steps", "5 steps"}}),
            "training.steps: is the text \"5 steps\" (--set); write a whole number without a unit, for "
            "example 5\n");
  EXPECT_EQ(problems(kSound, {{"training.steps", ""}}),
            "training.steps: is empty (--set); write a whole number, for example 1\n");
  EXPECT_EQ(problems(kSound, {{"name", "\xff"}}), "--set name: is not UTF-8 text; save it as UTF-8\n");
}

}  // namespace
}  // namespace coat
