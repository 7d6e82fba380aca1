// What is printed, to the letter.
#include "client/cli/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include "tests/support/client/fake_job_service.h"
#include "tests/unit/client/cli/command_run.h"

namespace coat::cli {
namespace {

using testing::failed_job;
using testing::FakeJobService;
using ::testing::HasSubstr;
using testing::running_job;
using testing::succeeded_job;

v1::Job pending_job(const std::string& id) {
  v1::Job job = running_job(id, 0);
  job.set_state(v1::Job::PENDING);
  job.set_attempt_count(0);
  job.clear_start_time();
  job.mutable_pending_status()->set_reason(v1::PendingStatus::DEVICES_BUSY);
  job.mutable_pending_status()->set_message("1 device is needed, 0 of 2 are free");
  job.mutable_pending_status()->set_queue_position(1);
  return job;
}

void fill(FakeJobService& service) {
  service.put(succeeded_job("quickstart-aaaaa"));
  service.put(failed_job("quickstart-bbbbb"));
  service.put(running_job("quickstart-ccccc", 40));
  service.put(pending_job("quickstart-ddddd"));
}

CommandRun coat(const FakeJobService& service, std::vector<std::string> arguments) {
  return run_command(arguments, {.server = service.address()});
}

TEST(ListOutput, Table) {
  FakeJobService service;
  fill(service);
  const CommandRun run = coat(service, {"list"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out,
            "NAME              STATE         STEP    LOSS   AGE  NOTE\n"
            "quickstart-ddddd  PENDING      0/100       -  0.0s  DEVICES_BUSY: 1 device is needed, 0 of 2 "
            "are free\n"
            "quickstart-ccccc  RUNNING     40/100  3.9000  0.0s\n"
            "quickstart-bbbbb  FAILED       0/100       -  0.0s  DATA_ERROR: the file /data/text is empty\n"
            "quickstart-aaaaa  SUCCEEDED  100/100  1.5000  0.0s\n");
  EXPECT_EQ(run.err, "");
}

TEST(ListOutput, WideNamesAndWithoutHeaders) {
  FakeJobService service;
  service.put(running_job("quickstart-ccccc", 40));
  EXPECT_EQ(
      coat(service, {"list", "-o", "wide"}).out,
      "NAME              STATE      STEP    LOSS  RECIPE  TOKENS/S  PEAK MEMORY  ATTEMPTS  RETRIES   AGE  "
      "NOTE\n"
      "quickstart-ccccc  RUNNING  40/100  3.9000  coat        3.4k     84.0 MiB         1        0  0.0s\n");
  EXPECT_EQ(coat(service, {"list", "--no-headers"}).out, "quickstart-ccccc  RUNNING  40/100  3.9000  0.0s\n");
  EXPECT_EQ(coat(service, {"list", "-o", "name"}).out, "quickstart-ccccc\n");
}

TEST(ListOutput, NothingIsSaidOnStandardErrorOnly) {
  FakeJobService service;
  const CommandRun run = coat(service, {"list"});
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err, "no jobs\n");
  EXPECT_EQ(coat(service, {"list", "-o", "json"}).out, "{\n  \"jobs\": []\n}\n");
}

TEST(ListOutput, FiltersReachTheService) {
  FakeJobService service;
  EXPECT_EQ(
      coat(service, {"list", "--state", "running,pending", "--name", "quick", "--label", "team=x"}).code, 0);
  const v1::ListJobsRequest request = service.lists().front();
  EXPECT_THAT(request.states(), ::testing::ElementsAre(v1::Job::RUNNING, v1::Job::PENDING));
  EXPECT_EQ(request.name_prefix(), "quick");
  EXPECT_EQ(request.labels().at("team"), "x");
  EXPECT_EQ(request.page_size(), 50);
}

TEST(GetOutput, JsonIsTheMessageWithProtoNames) {
  FakeJobService service;
  fill(service);
  const auto one = nlohmann::json::parse(coat(service, {"get", "quickstart-aaaaa", "-o", "json"}).out);
  EXPECT_EQ(one["name"], "jobs/quickstart-aaaaa");
  EXPECT_EQ(one["summary"]["checkpoint_path"], "/state/checkpoints/quickstart-aaaaa/step-00000100");
  EXPECT_EQ(one["summary"]["memory"]["total_bytes"], "60817408");
  const auto list = nlohmann::json::parse(coat(service, {"list", "-o", "json"}).out);
  EXPECT_EQ(list["jobs"].size(), 4U);
  EXPECT_EQ(list["jobs"][3], one);
}

TEST(GetOutput, SeveralJobsAndOneThatIsNotThere) {
  FakeJobService service;
  fill(service);
  const CommandRun run = coat(service, {"get", "quickstart-ccccc", "nope", "-o", "name"});
  EXPECT_EQ(run.code, 4);
  EXPECT_EQ(run.out, "quickstart-ccccc\n");
  EXPECT_EQ(run.err, "coat: there is no job \"jobs/nope\"\n");
}

// A YAML value as JSON, by the rules of YAML's core schema that the job files use too.
nlohmann::json as_json(const YAML::Node& node) {
  if (node.IsMap()) {
    nlohmann::json result = nlohmann::json::object();
    for (const auto& entry : node) result[entry.first.as<std::string>()] = as_json(entry.second);
    return result;
  }
  if (node.IsSequence()) {
    nlohmann::json result = nlohmann::json::array();
    for (const auto& entry : node) result.push_back(as_json(entry));
    return result;
  }
  if (node.IsNull()) return nullptr;
  if (node.Tag() == "!") return node.as<std::string>();
  const std::string text = node.as<std::string>();
  const auto scalar = nlohmann::json::parse(text, nullptr, false);
  return scalar.is_discarded() ? nlohmann::json(text) : scalar;
}

TEST(GetOutput, YamlHasTheSameContent) {
  FakeJobService service;
  fill(service);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"list"}, {"get", "quickstart-aaaaa"}, {"workers"}}) {
    auto json = arguments;
    json.insert(json.end(), {"-o", "json"});
    auto yaml = arguments;
    yaml.insert(yaml.end(), {"-o", "yaml"});
    EXPECT_EQ(as_json(YAML::Load(coat(service, yaml).out)), nlohmann::json::parse(coat(service, json).out));
  }
}

TEST(Yaml, TextsThatLookLikeSomethingElseAreQuoted) {
  EXPECT_EQ(
      json_to_yaml(
          R"({"a":"100","b":100,"c":"yes","d":"","e":"null","f":"1.5e3","g":"a b","h":true,"i":[],"j":".nan"})"),
      "a: \"100\"\nb: 100\nc: \"yes\"\nd: \"\"\ne: \"null\"\nf: \"1.5e3\"\ng: a b\nh: true\ni:\n  []\nj: "
      "\".nan\"\n");
  const std::string hard =
      R"({"a":"x: y # z","b":"- a","c":"line\nline\n","d":"\ttab","e":"{a}","f":"'q' \"r\"","g":" lead"})";
  const YAML::Node node = YAML::Load(json_to_yaml(hard));
  const auto json = nlohmann::json::parse(hard);
  for (const auto& [key, value] : json.items()) {
    EXPECT_EQ(node[key].as<std::string>(), value.get<std::string>()) << key;
  }
}

TEST(WorkersOutput, Table) {
  FakeJobService service;
  EXPECT_THAT(coat(service, {"workers"}).err, HasSubstr("no worker has connected; start one: coat-worker"));
  v1::Worker worker;
  worker.set_name("workers/w1");
  worker.set_state(v1::Worker::READY);
  worker.set_hostname("w1.local");
  worker.set_version("0.1.0");
  worker.set_incarnation(3);
  worker.add_attempts("jobs/quickstart-ccccc/attempts/1");
  worker.mutable_heartbeat_time()->set_seconds(999'999'998);
  for (int i = 0; i < 2; ++i) {
    v1::Device& device = *worker.add_devices();
    device.set_index(i);
    device.set_kind(v1::Device::CUDA);
    device.set_model("NVIDIA H200");
    device.set_memory_bytes(139LL << 30);
    device.set_health(i == 0 ? v1::Device::OK : v1::Device::SUSPECT);
  }
  worker.mutable_devices(1)->set_health_message("does not answer");
  service.put_worker(worker);
  const CommandRun run = coat(service, {"workers", "-o", "wide"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out,
            "NAME  STATE  DEVICES                         RUNS                             SEEN  HOST      "
            "VERSION  START  NOTE\n"
            "w1    READY  2 x cuda NVIDIA H200 (139 GiB)  quickstart-ccccc/attempts/1  2.0s ago  w1.local  "
            "0.1.0        3  device 1 SUSPECT does not answer\n");
  EXPECT_EQ(coat(service, {"workers", "-o", "name"}).out, "w1\n");
}

TEST(Describe, ASucceededJob) {
  FakeJobService service;
  service.put(running_job("quickstart-aaaaa", 0), "started", "jobs/quickstart-aaaaa/attempts/1");
  service.put(succeeded_job("quickstart-aaaaa"), "succeeded");
  v1::Attempt attempt;
  attempt.set_name("jobs/quickstart-aaaaa/attempts/1");
  attempt.set_state(v1::Attempt::SUCCEEDED);
  attempt.set_worker("workers/w1");
  attempt.add_devices(0);
  attempt.mutable_start_time()->set_seconds(1'000'000'001);
  attempt.mutable_end_time()->set_seconds(1'000'000'131);
  attempt.mutable_exit()->set_reason(v1::ExitStatus::DONE);
  attempt.mutable_progress()->set_step(100);
  service.put_attempt(attempt);
  const CommandRun run = coat(service, {"describe", "quickstart-aaaaa"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, R"(Job quickstart-aaaaa  SUCCEEDED
  recipe     coat
  data       /data/text
  submitted  2001-09-09 01:46:40Z
  started    2001-09-09 01:46:41Z, after 1.0s
  ended      2001-09-09 01:48:51Z, after 2m 10s

Training
  loss, first      5.5452   nats a token
  loss, last       1.7123   mean of the last tenth of the steps
  unigram entropy  3.1213   of the text: knowing only how frequent each token is; the last loss is 1.41 below it
  steps            100, 204,800 tokens
  speed            3,412 tokens/s, 2m 10s in all
  parameters       3.3M

  MEMORY             coat      bf16  coat needs
  weights        12.0 MiB  12.0 MiB  same
  gradients      12.0 MiB  12.0 MiB  same
  first moment    3.0 MiB  12.0 MiB  4.00x less
  second moment   3.0 MiB  12.0 MiB  4.00x less
  activations    20.0 MiB  80.0 MiB  4.00x less
  workspace       8.0 MiB   8.0 MiB  same
  total          58.0 MiB   136 MiB  2.34x less
  measured at the peak: 57.0 MiB

Quantization error, last measured
  TENSORS     FORMAT  RELATIVE ERROR  SATURATED  BECAME ZERO  EXPANSION
  activation  e4m3            2.63 %        0 %      0.010 %          -
  moment1     e4m3            1.10 %        0 %      0.010 %     x^2.50

Text from the trained model
  | And God said unto the
  | king

Attempts
  NO  STATE      WORKER  DEVICES  FROM STEP  TO STEP    TIME  EXIT  MESSAGE
   1  SUCCEEDED  w1      0                0      100  2m 10s  DONE

Files on worker w1
  checkpoint  /state/checkpoints/quickstart-aaaaa/step-00000100 (step 100)
  log         /state/attempts/1/log
  metrics     /state/attempts/1/metrics.jsonl

Events
  TIME                  WHAT        VERB       BY          MESSAGE
  2001-09-09 01:46:41Z  attempts/1  started    controller
  2001-09-09 01:46:42Z  job         succeeded  controller
)");
}

TEST(Describe, WhyAJobWaitsOrFailed) {
  FakeJobService service;
  fill(service);
  const std::string pending = coat(service, {"describe", "quickstart-ddddd"}).out;
  EXPECT_THAT(pending, HasSubstr("  waits         DEVICES_BUSY: 1 device is needed, 0 of 2 are free\n"));
  EXPECT_THAT(pending, HasSubstr("  in the queue  1\n"));
  const std::string failed = coat(service, {"describe", "quickstart-bbbbb"}).out;
  EXPECT_THAT(failed, HasSubstr("  failed      DATA_ERROR: the file /data/text is empty\n"));
  EXPECT_THAT(failed, HasSubstr("  field       data.path\n"));
  EXPECT_THAT(failed, HasSubstr("  what to do  name a file with at least 257 tokens\n"));
}

TEST(Describe, ALossThatIsNotBelowTheEntropyIsSaid) {
  FakeJobService service;
  v1::Job job = succeeded_job("j");
  job.mutable_summary()->set_last_loss(3.5);
  service.put(job);
  EXPECT_THAT(coat(service, {"describe", "j"}).out, HasSubstr("the last loss is not below it"));
}

TEST(Describe, EndsThoughEventsAreGone) {
  FakeJobService service;
  fill(service);
  service.forget_events_before(100);
  const CommandRun run = coat(service, {"describe", "quickstart-ccccc"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, HasSubstr("  progress   step 40/100  loss 3.9000  3.4k tokens/s"));
}

TEST(Color, OnlyWhereTheTerminalShowsIt) {
  FakeJobService service;
  fill(service);
  const Surroundings colored{.server = service.address(), .tty = true, .color = true};
  EXPECT_THAT(run_command({"describe", "quickstart-aaaaa"}, colored).out,
              HasSubstr("\x1b[32mSUCCEEDED\x1b[0m"));
  EXPECT_EQ(coat(service, {"describe", "quickstart-aaaaa"}).out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace coat::cli
