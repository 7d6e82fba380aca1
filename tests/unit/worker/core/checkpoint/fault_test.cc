// Every point at which a write can fail or a process can die.
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/unit/worker/core/checkpoint/faulty_file_system.h"
#include "tests/unit/worker/core/checkpoint/fixture.h"
#include "worker/core/base/error.h"

namespace coat::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What every crash and failure must leave behind: the checkpoint of step 100 or, once published, of step 200;
// whole.
void expect_whole(FileSystem& files, const std::string& folder, std::int64_t epoch, const std::string& when) {
  Store after(files, folder, epoch, 2);
  after.open();
  State state;
  std::vector<std::string> warnings;
  const auto loaded = after.load(state.expected(), &warnings);
  ASSERT_TRUE(loaded) << when;
  EXPECT_TRUE(loaded->progress.step == 100 || loaded->progress.step == 200) << when;
  State expected;
  expected.fill(loaded->progress.step);
  EXPECT_TRUE(state == expected) << when;
  EXPECT_THAT(warnings, IsEmpty()) << when;
  for (const std::string& name : files.list(folder)) {
    EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name << " " << when;
    EXPECT_EQ(name.find(".old-"), std::string::npos) << name << " " << when;
  }
}

class FaultTest : public StoreTest {
 protected:
  // A folder with step 100, then one save of step 200 with `keep` 1 (so that old ones go, too) over `files`.
  void save_over(FaultyFileSystem& files) {
    std::filesystem::remove_all(folder_ / "job");
    State state;
    Store first = store(real_, 1, 1);
    first.open();
    first.save(state.content(100));
    Store second = store(files, 1, 1);
    second.save(state.content(200));
  }
  int operations_of_a_save() {
    FaultyFileSystem counting;
    save_over(counting);
    return counting.operations();
  }
};

TEST_F(FaultTest, ACrashBetweenAnyTwoOperationsLosesNothing) {
  const int operations = operations_of_a_save();
  ASSERT_GT(operations, 10);
  for (int at = 0; at < operations; ++at) {
    FaultyFileSystem files;
    files.crash_at(at);
    EXPECT_THROW(save_over(files), Crash) << at;
    expect_whole(real_, folder_ / "job", 2, "crash at operation " + std::to_string(at));
  }
}

TEST_F(FaultTest, AFailureOfAnyOperationIsToldAndLosesNothing) {
  const int operations = operations_of_a_save();
  int told = 0;
  for (int at = 0; at < operations; ++at) {
    FaultyFileSystem files;
    files.fail_at(at, ENOSPC);
    try {
      save_over(files);
    } catch (const CheckpointError& error) {
      ++told;
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("step 200 needs 1528 bytes"), HasSubstr("No space left on device"),
                        HasSubstr("earlier checkpoints are intact")));
      // The failed save cleaned up after itself.
      for (const std::string& name : names()) EXPECT_EQ(name.find(".tmp-"), std::string::npos) << at;
    }
    expect_whole(real_, folder_ / "job", 2, "failure at operation " + std::to_string(at));
  }
  // Two operations remove an old checkpoint after the new one is in place: their failure waits for the next
  // save.
  EXPECT_EQ(told, operations - 2);
}

TEST_F(FaultTest, ACrashWhileAStepIsReplacedLosesNothing) {
  const auto replace = [&](FaultyFileSystem& files) {
    std::filesystem::remove_all(folder_ / "job");
    State state;
    Store first = store(real_, 1, 2);
    first.open();
    first.save(state.content(100));
    first.save(state.content(200));
    store(files, 1, 2).save(state.content(200));
  };
  FaultyFileSystem counting;
  replace(counting);
  for (int at = 0; at < counting.operations(); ++at) {
    FaultyFileSystem files;
    files.crash_at(at);
    EXPECT_THROW(replace(files), Crash);
    expect_whole(real_, folder_ / "job", 2, "crash at operation " + std::to_string(at));
    EXPECT_THAT(list_checkpoints(real_, folder_ / "job"),
                ElementsAre(job("step-00000200"), job("step-00000100")));
  }
}

TEST_F(FaultTest, ACrashWhileTheFolderIsTakenOverLeavesItUsable) {
  FaultyFileSystem counting;
  store(counting, 2).open();
  for (int at = 0; at < counting.operations(); ++at) {
    std::filesystem::remove_all(folder_ / "job");
    State state;
    Store first = store(real_, 1);
    first.open();
    first.save(state.content(100));
    FaultyFileSystem files;
    files.crash_at(at);
    EXPECT_THROW(store(files, 2).open(), Crash) << at;
    expect_whole(real_, folder_ / "job", 3, "crash at operation " + std::to_string(at));
  }
}

// A newer attempt takes the folder over at any moment of an older one's save.
TEST_F(FaultTest, ANewerEpochAtAnyMomentFencesTheSave) {
  const int operations = operations_of_a_save();
  int fenced = 0;
  for (int at = 0; at < operations; ++at) {
    FaultyFileSystem files;
    bool taken = false;
    files.before_operation = [&](int number) {
      // Inside the lock the newer one would wait; the operations from publishing on are held by it.
      if (taken || number != at || number >= operations - 4) return;
      taken = true;
      store(real_, 9).open();
    };
    try {
      save_over(files);
    } catch (const FencedError&) {
      ++fenced;
      EXPECT_THAT(list_checkpoints(real_, folder_ / "job"), ElementsAre(job("step-00000100"))) << at;
    }
    EXPECT_NE(taken, at >= operations - 4);
    expect_whole(real_, folder_ / "job", 9, "taken over at operation " + std::to_string(at));
  }
  EXPECT_EQ(fenced, operations - 4);
}

TEST_F(FaultTest, TooLittleRoomIsFoundBeforeItIsNeeded) {
  FaultyFileSystem files;
  Store checkpoints = store(files);
  checkpoints.open();
  files.set_free_bytes(1000);
  checkpoints.require_room(1000);
  try {
    checkpoints.require_room(1001);
    FAIL() << "1001 bytes do not fit into 1000";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("has 1000 bytes free"), HasSubstr("needs 1001")));
  }
}

// The real file system with a real limit, in a process of its own: files stop at 1,000 bytes.
TEST_F(FaultTest, AFileSizeLimitOfTheSystemIsAnErrorAndNoSignal) {
  State state;
  Store first = store(real_);
  first.open();
  first.save(state.content(100));
  const auto save_in_a_small_world = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(3);
    try {
      State other;
      first.save(other.content(200));
    } catch (const CheckpointError& error) {
      const std::string what = error.what();
      std::_Exit(what.find("File too large") != std::string::npos &&
                         what.find("1528 bytes") != std::string::npos
                     ? 0
                     : 1);
    }
    std::_Exit(2);
  };
  EXPECT_EXIT(save_in_a_small_world(), ::testing::ExitedWithCode(0), "");
  EXPECT_THAT(names(), ElementsAre("epoch", "lock", "step-00000100"));
  expect_whole(real_, folder_ / "job", 1, "after the disk was full");
}

}  // namespace
}  // namespace coat::checkpoint
