// Daemons that cannot start say why, name the option, and leave nothing behind.
#include <sqlite3.h>

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

class StartTest : public ::testing::Test {
 protected:
  Output controller(std::vector<std::string> options) {
    options.insert(options.begin(), program("coat-controller"));
    return run_to_end(options, service_.folder());
  }
  Output worker(std::vector<std::string> options) {
    options.insert(options.begin(), program("coat-worker"));
    return run_to_end(options, service_.folder());
  }
  static void expect_refusal(const Output& output, const std::vector<std::string>& expected) {
    EXPECT_GT(output.exit.code, 0);
    for (const std::string& part : expected) {
      EXPECT_NE((output.err + output.out).find(part), std::string::npos) << "'" << part << "' is missing in\n"
                                                                         << output.err << output.out;
    }
  }

  Service service_;
};

TEST_F(StartTest, APortInUseIsNamedWithItsOption) {
  service_.start_controller();
  const std::string other = service_.folder() / "other";
  const std::string any = "127.0.0.1:0";
  expect_refusal(controller({"--state-dir", other, "--listen", service_.jobs_address(), "--worker-listen",
                             any, "--metrics-listen", any}),
                 {service_.jobs_address(), "--listen"});
  expect_refusal(controller({"--state-dir", other, "--listen", any, "--worker-listen",
                             service_.jobs_address(), "--metrics-listen", any}),
                 {service_.jobs_address(), "--worker-listen"});
  expect_refusal(controller({"--state-dir", other, "--listen", any, "--worker-listen", any,
                             "--metrics-listen", service_.metrics_address()}),
                 {service_.metrics_address(), "--metrics-listen"});
  expect_refusal(worker({"--state-dir", service_.folder() / "worker", "--controller",
                         service_.workers_address(), "--metrics-listen", service_.metrics_address()}),
                 {service_.metrics_address(), "--metrics-listen"});
}

TEST_F(StartTest, AStateFolderThatCannotBeWrittenIsNamed) {
  write_file(service_.folder() / "file", "");
  // Below a file, and on a file system that nobody can write to: root may not either.
  for (const std::string& folder : {(service_.folder() / "file" / "state").string(), std::string("/proc")}) {
    expect_refusal(controller({"--state-dir", folder, "--listen", "127.0.0.1:0", "--worker-listen",
                               "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"}),
                   {folder});
    expect_refusal(
        worker({"--state-dir", folder, "--controller", "127.0.0.1:1", "--metrics-listen", "127.0.0.1:0"}),
        {folder});
  }
}

TEST_F(StartTest, AStateFolderOfANewerVersionIsRefusedAndLeftAsItIs) {
  service_.start_controller();
  service_.controller().kill_now();
  {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open((service_.controller_folder() / "coat.db").c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, "INSERT INTO schema_version VALUES (999)", nullptr, nullptr, nullptr),
              SQLITE_OK);
    sqlite3_close(database);
  }
  expect_refusal(controller({"--state-dir", service_.controller_folder(), "--listen", "127.0.0.1:0",
                             "--worker-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"}),
                 {service_.controller_folder(), "999", "newer"});
  const std::filesystem::path folder = service_.folder() / "newer-worker";
  const std::string state = "{\"version\": 999, \"something\": \"new\"}\n";
  std::filesystem::create_directories(folder);
  write_file(folder / "state.json", state);
  expect_refusal(
      worker({"--state-dir", folder, "--controller", "127.0.0.1:1", "--metrics-listen", "127.0.0.1:0"}),
      {folder, "999", "newer"});
  EXPECT_EQ(read_file(folder / "state.json"), state);
}

TEST_F(StartTest, BadOptionsAreNamed) {
  expect_refusal(controller({"--state-dir", service_.folder() / "s", "--lease", "soon"}),
                 {"--lease", "soon"});
  expect_refusal(controller({"--state-dir", service_.folder() / "s", "--listne", "127.0.0.1:0"}),
                 {"--listne"});
  expect_refusal(controller({}), {"--state-dir"});
  expect_refusal(worker({"--state-dir", service_.folder() / "s", "--id", "Not An Id"}),
                 {"--id", "Not An Id"});
  expect_refusal(worker({"--state-dir", service_.folder() / "s", "--memory-limit", "much"}),
                 {"--memory-limit", "much"});
}

TEST_F(StartTest, HelpTeaches) {
  for (const char* name : {"coat-controller", "coat-worker", "coat-trainer", "coat"}) {
    const Output output = run_to_end({program(name), "--help"}, service_.folder());
    EXPECT_EQ(output.exit.code, 0) << name;
    EXPECT_NE(output.out.find("xample"), std::string::npos) << name << ":\n" << output.out;
  }
}

}  // namespace
}  // namespace coat::testing
