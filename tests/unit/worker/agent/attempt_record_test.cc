#include "worker/agent/attempt_record.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/agent/agent_test_support.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/file_lock.h"
#include "worker/agent/state_folder.h"

namespace coat::agent {
namespace {

using testing::ScratchFolder;
using testing::spit;

TEST(AttemptRecordTest, EveryFileRoundTrips) {
  const AttemptRecord attempt{
      "jobs/a-x7k2p/attempts/2", 17, {1}, {"/bin/trainer", "--spec", "s p"}, 12.5, 3.25, "/s/lock"};
  EXPECT_EQ(parse_attempt_record(to_json(attempt)), attempt);
  const StopRequest stop{1.5, true, true, "because"};
  EXPECT_EQ(parse_stop_request(to_json(stop)), stop);
  const SupervisorRecord supervisor{{10, 11}, {12, 13}, "boot", "/sys/fs/cgroup/x"};
  EXPECT_EQ(parse_supervisor_record(to_json(supervisor)), supervisor);
  ExitRecord exit;
  EXPECT_EQ(parse_exit_record(to_json(exit)), exit);
  exit = {85, 0, true, stop, "launch", "supervisor", {{14, 15}}, 99.5};
  EXPECT_EQ(parse_exit_record(to_json(exit)), exit);
}

TEST(AttemptRecordTest, DamageIsNamed) {
  const std::string whole = to_json(AttemptRecord{});
  for (std::size_t size : {std::size_t{0}, whole.size() / 2}) {
    try {
      parse_attempt_record(whole.substr(0, size));
      ADD_FAILURE() << "accepted " << size << " bytes";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("attempt.json"), std::string::npos);
    }
  }
  EXPECT_THROW(parse_exit_record("{}"), std::runtime_error);
}

TEST(AttemptRecordTest, NamesThatCouldLeaveTheFolderAreNoNames) {
  const auto name = parse_attempt_name("jobs/quick-x7k2p/attempts/3");
  ASSERT_TRUE(name);
  EXPECT_EQ(attempt_folder_name(*name, 9), "quick-x7k2p.3.9");
  for (const char* bad :
       {"", "jobs/", "jobs/a", "jobs//attempts/1", "jobs/../attempts/1", "jobs/a/b/attempts/1",
        "jobs/a/attempts/", "jobs/a/attempts/-1", "jobs/a/attempts/1x", "jobs/a/attempts/12345678901"}) {
    EXPECT_FALSE(parse_attempt_name(bad)) << bad;
  }
}

TEST(FileLockTest, OneHolderAtATime) {
  ScratchFolder folder;
  EXPECT_FALSE(is_locked(folder / "lock"));
  {
    const auto lock = FileLock::try_acquire(folder / "lock");
    ASSERT_TRUE(lock);
    EXPECT_TRUE(is_locked(folder / "lock"));
    EXPECT_FALSE(FileLock::try_acquire(folder / "lock"));
    EXPECT_EQ(lock_owner(folder / "lock"), std::to_string(::getpid()));
  }
  EXPECT_FALSE(is_locked(folder / "lock"));
}

TEST(DurableFileTest, ReplacesWholeAndReadsRanges) {
  ScratchFolder folder;
  EXPECT_FALSE(read_file(folder / "f"));
  write_durably(folder / "f", "hello");
  replace_file(folder / "f", "goodbye");
  EXPECT_EQ(read_file(folder / "f"), "goodbye");
  EXPECT_EQ(read_range(folder / "f", 4, 100), "bye");
  EXPECT_EQ(read_range(folder / "f", 1, 2), "oo");
  EXPECT_EQ(size_of_file(folder / "f"), 7);
  EXPECT_EQ(size_of_file(folder / "none"), 0);
  EXPECT_THROW(write_durably(folder / "no/such/folder", ""), std::system_error);
}

std::string refusal_of(const std::filesystem::path& path) {
  try {
    open_state_folder(path);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(StateFolderTest, IncarnationsRise) {
  ScratchFolder folder;
  EXPECT_EQ(open_state_folder(folder / "state").incarnation, 1);
  EXPECT_EQ(open_state_folder(folder / "state").incarnation, 2);
}

TEST(StateFolderTest, RefusalsSayWhy) {
  ScratchFolder folder;
  {
    const OpenedState held = open_state_folder(folder / "state");
    const std::string refusal = refusal_of(folder / "state");
    EXPECT_NE(refusal.find("process " + std::to_string(::getpid())), std::string::npos) << refusal;
  }
  spit(folder / "state/state.json", R"({"version": 99, "incarnation": 5})");
  EXPECT_NE(refusal_of(folder / "state").find("newer"), std::string::npos);
  spit(folder / "state/state.json", "{");
  EXPECT_NE(refusal_of(folder / "state").find("damaged"), std::string::npos);
  spit(folder / "file", "");
  EXPECT_NE(refusal_of(folder / "file").find("--state-dir"), std::string::npos);
}

}  // namespace
}  // namespace coat::agent
