#include "proto/common/spec_conversion.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/common/message_json.h"

namespace coat {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::IsEmpty;

void collect(const Descriptor& message, const std::string& prefix, std::set<std::string>& paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.type() == FieldDescriptor::TYPE_MESSAGE && !field.is_map()) {
      collect(*field.message_type(), prefix + field.name() + ".", paths);
    } else {
      paths.insert(prefix + field.name());
    }
  }
}

// spec/job_spec.h and the wire type say the same, both ways.
TEST(SpecConversion, TheWireTypeAndTheSpecHaveTheSameFields) {
  std::set<std::string> wire;
  collect(*v1::JobSpec::descriptor(), "", wire);
  EXPECT_EQ(wire, std::set<std::string>(spec::field_paths().begin(), spec::field_paths().end()));
}

// Without presence a field that someone set to its zero would read as "not set", which has another meaning.
TEST(SpecConversion, EveryFieldWithADefaultKnowsWhetherItWasSet) {
  const std::set<std::string> required = {"name", "data.path"};
  const auto check = [&](const Descriptor& message, const std::string& prefix, const auto& self) -> void {
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      const std::string path = prefix + field.name();
      if (field.is_map()) continue;
      if (field.type() == FieldDescriptor::TYPE_MESSAGE) self(*field.message_type(), path + ".", self);
      if (!required.contains(path)) {
        EXPECT_TRUE(field.has_presence()) << path;
      }
    }
  };
  check(*v1::JobSpec::descriptor(), "", check);
}

spec::JobSpec unusual_spec() {
  spec::JobSpec spec;
  spec.name = "x9";
  spec.recipe = "bf16";
  spec.model = {320, 96, 200, 3, 6, 2, 3e-6, 500000.5, true};
  spec.data = {"/data/tokens", "uint16"};
  spec.training = {7, 33, 5, 3, 18446744073709551615ULL};
  spec.optimizer = {0.1 + 0.2, "linear", 3, 0.25, 0.8, 0.999, 1e-7, 0, 0};
  spec.checkpoint = {5, 9};
  spec.metrics = {0};
  spec.sample = {"", 12, 0};
  spec.resources = {1, "cpu"};
  spec.retry = {0};
  spec.stop_grace_seconds = 0;
  spec.labels = {{"b", "2"}, {"a", ""}};
  return spec;
}

TEST(SpecConversion, AMessageAndBackIsTheSameSpec) {
  for (const spec::JobSpec& spec : {unusual_spec(), [] {
                                      spec::JobSpec smallest;
                                      smallest.name = "a";
                                      smallest.data.path = "/x";
                                      smallest.training.steps = 1;
                                      return smallest;
                                    }()}) {
    const spec::ParseResult back = check_spec(to_message(spec));
    EXPECT_THAT(back.violations, IsEmpty()) << spec::format_violations(back.violations);
    EXPECT_EQ(back.spec, spec);
  }
}

TEST(SpecConversion, AFullMessageHasEveryField) {
  std::set<std::string> set;
  const v1::JobSpec message = to_message(unusual_spec());
  const auto visit = [&](const google::protobuf::Message& part, const std::string& prefix,
                         const auto& self) -> void {
    std::vector<const FieldDescriptor*> fields;
    part.GetReflection()->ListFields(part, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->type() == FieldDescriptor::TYPE_MESSAGE && !field->is_map()) {
        self(part.GetReflection()->GetMessage(part, field), prefix + field->name() + ".", self);
      } else {
        set.insert(prefix + field->name());
      }
    }
  };
  visit(message, "", visit);
  EXPECT_EQ(set, std::set<std::string>(spec::field_paths().begin(), spec::field_paths().end()));
}

TEST(SpecConversion, AMessageIsCheckedByTheSameRules) {
  v1::JobSpec message;
  message.mutable_training()->set_steps(0);
  message.mutable_optimizer()->set_learning_rate(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(spec::format_violations(check_spec(message).violations),
            "name: is required; add it, for example name = my-job\n"
            "data.path: is required; add it, for example data.path = /data/text.txt\n"
            "training.steps: 0 is too small; use 1 or more\n"
            "optimizer.learning_rate: NaN is not a finite number; use a number above 0\n");
}

TEST(MessageJson, ProtoNamesStringsForWhatIsNotFiniteAndSortedMaps) {
  v1::Job job;
  job.mutable_progress()->set_loss(std::numeric_limits<double>::quiet_NaN());
  job.mutable_progress()->set_grad_norm(-std::numeric_limits<double>::infinity());
  job.mutable_create_time()->set_seconds(0);
  for (int i = 99; i >= 10; --i) (*job.mutable_spec()->mutable_labels())["k" + std::to_string(i)] = "v";
  const std::string json = message_to_json(job, false);
  EXPECT_NE(json.find(R"("create_time":"1970-01-01T00:00:00Z")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("loss":"NaN","grad_norm":"-Infinity")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("k10":"v","k11":"v","k12":"v")"), std::string::npos) << json;
  v1::Job back;
  EXPECT_EQ(message_from_json(json, &back), "");
  EXPECT_EQ(message_to_json(back, false), json);
}

TEST(MessageJson, WhatIsWrongIsTold) {
  v1::Job job;
  EXPECT_NE(message_from_json("{", &job), "");
  EXPECT_NE(message_from_json(R"({"nmae": "x"})", &job), "");
  EXPECT_NE(message_from_json(R"({"name": 5, "state": "SOMEWHERE"})", &job), "");
}

}  // namespace
}  // namespace coat
