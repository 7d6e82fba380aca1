#include "worker/agent/process.h"

#include <fcntl.h>

#include <system_error>

#include <gtest/gtest.h>

#include "tests/unit/worker/agent/agent_test_support.h"
#include "worker/agent/captured_run.h"
#include "worker/agent/cgroup.h"
#include "worker/agent/unique_fd.h"

namespace coat::agent {
namespace {

using testing::eventually;
using testing::none_alive;
using testing::noted_pids;
using testing::ScratchFolder;
using testing::slurp;

const auto never = [] { return false; };

std::string printed(const std::string& script) {
  return run_captured({"/bin/sh", "-c", script}, std::chrono::seconds(60), never).output;
}

TEST(SpawnTest, AProgramThatCannotRunIsNamed) {
  try {
    spawn({.arguments = {"/nowhere/trainer"}});
    ADD_FAILURE() << "it ran";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOENT);
    EXPECT_NE(std::string(error.what()).find("/nowhere/trainer"), std::string::npos);
  }
}

TEST(SpawnTest, ASessionOfItsOwnAndNoStrayDescriptors) {
  UniqueFd stray(::open("/dev/null", O_RDONLY));  // not close-on-exec
  ASSERT_TRUE(stray);
  EXPECT_EQ(printed("set -- $(cat /proc/self/stat); test $$ = $6 && echo own"), "own\n");
  EXPECT_EQ(printed("test -e /proc/$$/fd/" + std::to_string(stray.get()) + " || echo closed"), "closed\n");
}

TEST(SpawnTest, TheInheritedDescriptorHasItsNumber) {
  ScratchFolder folder;
  UniqueFd file(::open((folder / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  const pid_t pid = spawn({.arguments = {"/bin/sh", "-c", "echo there >&3"}, .inherited_fd = file.get()});
  EXPECT_EQ(reap(pid).exit_code, 0);
  EXPECT_EQ(slurp(folder / "f"), "there\n");
}

TEST(SpawnTest, SignalsAreAtTheirDefaults) {
  ::signal(SIGPIPE, SIG_IGN);
  const pid_t pid = spawn({.arguments = {"/bin/sh", "-c", "kill -PIPE $$; exit 3"}});
  EXPECT_EQ(reap(pid).signal, SIGPIPE);
}

TEST(SpawnTest, TheChildDiesWithTheThreadThatStartedIt) {
  pid_t pid = 0;
  std::thread starter([&pid] {
    pid = spawn({.arguments = {"/bin/sleep", "1000"}, .parent_death_signal = SIGKILL});
  });
  starter.join();
  EXPECT_EQ(reap(pid).signal, SIGKILL);
}

TEST(KillTreeTest, EndsWhatIgnoresSigtermAndWhatIsBelowIt) {
  ScratchFolder folder;
  const std::string note = (folder / "pids").string();
  const pid_t pid =
      spawn({.arguments = {"/bin/sh", "-c",
                           "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >> " + note +
                               "; while :; do sleep 1; done' & echo $$ >> " + note + "; wait; wait"}});
  ASSERT_TRUE(eventually([&] { return noted_pids(note).size() == 2; }));
  EXPECT_TRUE(kill_tree(process_entry(pid)->identity, false, std::chrono::seconds(60)).empty());
  EXPECT_TRUE(none_alive(noted_pids(note)));
  EXPECT_EQ(reap(pid).signal, SIGKILL);
}

TEST(KillTreeTest, AReusedIdIsNotTouched) {
  const pid_t pid = spawn({.arguments = {"/bin/sleep", "1000"}});
  ProcessIdentity other = process_entry(pid)->identity;
  ++other.start_time;  // an earlier process of the same id
  EXPECT_FALSE(is_alive(other));
  EXPECT_TRUE(kill_tree(other, false, std::chrono::seconds(60)).empty());
  ChildStatus status;
  EXPECT_FALSE(try_reap(pid, &status));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(reap(pid).signal, SIGKILL);
}

TEST(CapturedRunTest, KeepsOutputAndStatus) {
  const CapturedRun run =
      run_captured({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"}, std::chrono::seconds(60), never);
  EXPECT_EQ(run.output, "out\n");
  EXPECT_EQ(run.error_output, "err\n");
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_FALSE(run.timed_out);
}

TEST(CapturedRunTest, AChildThatKeepsThePipeDoesNotHoldItUp) {
  const CapturedRun run =
      run_captured({"/bin/sh", "-c", "sleep 1000 & echo $!"}, std::chrono::seconds(60), never);
  EXPECT_FALSE(run.timed_out);
  ::kill(std::stoi(run.output), SIGKILL);
}

TEST(CapturedRunTest, TimeIsUp) {
  const CapturedRun run = run_captured({"/bin/sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"},
                                       std::chrono::milliseconds(50), never);
  EXPECT_TRUE(run.timed_out);
  EXPECT_EQ(run.signal, SIGKILL);
}

TEST(CgroupTest, HoldsAndKillsWhatEntersIt) {
  auto cgroup = Cgroup::create("coat-test-" + std::to_string(::getpid()));
  if (!cgroup) GTEST_SKIP() << "no cgroup may be made on this machine";
  const std::filesystem::path path = cgroup->path();
  const pid_t pid =
      spawn({.arguments = {"/bin/sh", "-c", "sleep 1000 & wait"}, .cgroup_procs_fd = cgroup->procs_fd()});
  EXPECT_TRUE(eventually([&] { return noted_pids(path / "cgroup.procs").size() == 2; }));
  cgroup->kill();
  EXPECT_EQ(reap(pid).signal, SIGKILL);
  EXPECT_TRUE(eventually([&] { return noted_pids(path / "cgroup.procs").empty(); }));
  cgroup.reset();
  end_cgroup(path);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace coat::agent
