// Bad job files and bad requests through the real command line: the exit code, the field and the fix.
#include <signal.h>

#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

struct BadSpec {
  friend void PrintTo(const BadSpec& spec, std::ostream* stream) { *stream << spec.what; }

  const char* what;
  std::vector<std::string> set;       // --set options
  std::string extra;                  // more YAML
  std::vector<std::string> expected;  // in what is printed
};

class BadSpecTest : public ::testing::TestWithParam<BadSpec> {
 protected:
  // One controller and worker for all cases: nothing that they are given may change them.
  static void SetUpTestSuite() {
    service = new Service();
    service->start_controller();
    service->start_worker({});
    ASSERT_TRUE(service->worker_reaches("w1", v1::Worker::READY));
    write_file(service->folder() / "empty.txt", "");
    write_file(service->folder() / "short.txt", "short");
    write_file(service->folder() / "ids.bin", std::string("\x10\x00\xff\x7f", 4) + std::string(200, '\0'));
  }
  static void TearDownTestSuite() {
    delete service;
    service = nullptr;
  }

  static Service* service;
};
Service* BadSpecTest::service = nullptr;

TEST_P(BadSpecTest, IsRefusedBeforeAnythingStarts) {
  std::vector<std::string> arguments = {"submit", service->write_job({.extra = GetParam().extra})};
  for (std::string option : GetParam().set) {
    const std::size_t at = option.find("FOLDER");
    if (at != std::string::npos) option.replace(at, 6, service->folder().string());
    arguments.insert(arguments.end(), {"--set", option});
  }
  const Output output = service->cli(arguments);
  EXPECT_EQ(output.exit.code, 2) << output.out << output.err;
  for (const std::string& part : GetParam().expected) {
    EXPECT_NE(output.err.find(part), std::string::npos) << "'" << part << "' is missing in\n" << output.err;
  }
  EXPECT_EQ(service->cli({"list", "-o", "name"}).out, "");
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSpecTest,
    ::testing::Values(
        BadSpec{"UnknownField", {}, "modle: {hidden: 64}\n", {"modle", "model"}},
        BadSpec{"DuplicateKey", {}, "name: other\n", {"name"}},
        BadSpec{"WrongType", {"training.steps=many"}, "", {"training.steps", "many"}},
        BadSpec{"WrongUnit", {"training.steps=10 steps"}, "", {"training.steps"}},
        BadSpec{"UnknownRecipe", {"recipe=goat"}, "", {"recipe", "goat", "coat", "bf16"}},
        BadSpec{"HiddenNotDivisibleByHeads", {"model.hidden=33"}, "", {"model.hidden", "33"}},
        BadSpec{"OddHeadSize", {"model.hidden=34"}, "", {"34", "17"}},
        BadSpec{
            "HeadsNotDivisibleByKvHeads", {"model.heads=4", "model.kv_heads=3"}, "", {"model.kv_heads", "3"}},
        BadSpec{"ZeroSteps", {"training.steps=0"}, "", {"training.steps", "0"}},
        BadSpec{"WarmupLongerThanTheRun",
                {"optimizer.warmup_steps=31"},
                "",
                {"optimizer.warmup_steps", "31", "30"}},
        BadSpec{"NegativeRate", {"optimizer.learning_rate=-1"}, "", {"optimizer.learning_rate", "-1"}},
        BadSpec{"NonFiniteRate", {"optimizer.learning_rate=nan"}, "", {"optimizer.learning_rate", "nan"}},
        BadSpec{"NameThatIsNone", {"name=Not_A_Name"}, "", {"name", "Not_A_Name"}},
        BadSpec{"MissingData", {"data.path=FOLDER/none.txt"}, "", {"data.path", "none.txt"}},
        BadSpec{"EmptyData", {"data.path=FOLDER/empty.txt"}, "", {"data.path", "empty"}},
        BadSpec{"DataIsAFolder", {"data.path=FOLDER"}, "", {"data.path", "directory"}},
        BadSpec{"SequenceLongerThanTheData", {"data.path=FOLDER/short.txt"}, "", {"data.path", "5"}},
        BadSpec{"TokenOutsideTheVocabulary",
                {"data.path=FOLDER/ids.bin", "data.format=uint16", "sample.prompt="},
                "",
                {"data.path", "32767", "256"}}),
    [](const auto& param) { return std::string(param.param.what); });

TEST(BadRequest, AJobLargerThanTheDevice) {
  Service service;
  service.start_controller();
  service.start_worker({.memory_limit = "16MiB"});
  ASSERT_TRUE(service.worker_reaches("w1", v1::Worker::READY));
  const Output output = service.cli({"submit", service.write_job({}), "--set", "model.hidden=1024", "--set",
                                     "model.intermediate=4096", "--set", "model.heads=8"});
  EXPECT_NE(output.exit.code, 0);
  EXPECT_NE(output.err.find("16777216"), std::string::npos) << output.err;
  // Past the command line's own check the job waits, with the reason and its numbers.
  v1::JobSpec spec;
  spec.set_name("large");
  spec.mutable_model()->set_hidden(1024);
  spec.mutable_data()->set_path(service.folder() / "text.txt");
  spec.mutable_training()->set_steps(1);
  const auto submitted = service.client().submit(spec, "");
  ASSERT_TRUE(submitted.ok()) << submitted.error().message;
  const std::string id = submitted.value().name().substr(5);
  ASSERT_TRUE(service.reaches(
      id, [](const v1::Job& job) { return job.pending_status().reason() == v1::PendingStatus::NEVER_FITS; }));
  EXPECT_FALSE(service.job(id).pending_status().details().empty());
  EXPECT_EQ(service.job(id).attempt_count(), 0);
}

TEST(BadRequest, DataThatGoesAwayAfterTheSubmitFailsTheJobWithItsField) {
  Service service;
  service.start_controller();
  const std::string id =
      service.submit({.data_path = service.folder() / "gone.txt"});  // no worker looks at it yet
  service.start_worker({});
  ASSERT_TRUE(service.reaches(id, v1::Job::FAILED));
  const v1::Job job = service.job(id);
  EXPECT_EQ(job.exit().reason(), v1::ExitStatus::DATA_ERROR);
  EXPECT_EQ(job.exit().field(), "data.path");
  EXPECT_EQ(job.attempt_count(), 0);
  EXPECT_EQ(service.cli({"wait", id}).exit.code, 1);
}

TEST(BadRequest, ExitCodesOfTheCommandLine) {
  Service service;
  service.start_controller();
  EXPECT_EQ(service.cli({"get", "none-aaaaa"}).exit.code, 4);
  EXPECT_EQ(service.cli({"submit", service.folder() / "none.yaml"}).exit.code, 2);
  EXPECT_EQ(service.cli({"submti"}).exit.code, 2);
  const std::string id = service.submit({});
  EXPECT_EQ(service.cli({"wait", id, "--timeout", "1s"}).exit.code, 124);
  service.controller().signal(SIGTERM);
  service.controller().wait();
  EXPECT_EQ(service.cli({"list"}).exit.code, 5);
}

}  // namespace
}  // namespace coat::testing
