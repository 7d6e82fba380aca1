#include "server/store/sqlite_store.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "server/store/schema.h"
#include "server/store/state_folder.h"
#include "tests/support/temporary_folder.h"

namespace coat::store {
namespace {

JobRow job(std::int64_t order) {
  JobRow row;
  row.order = order;
  row.job.set_name("jobs/j-" + std::to_string(order));
  row.job.mutable_spec()->set_name("j");
  row.job.set_state(v1::Job::PENDING);
  return row;
}

// Submits jobs from `first` on and writes the number of each acknowledged one to `out`, until it is killed.
[[noreturn]] void submit_until_killed(const std::filesystem::path& file, std::int64_t first, int out) {
  SqliteStore store({.file = file}, real_clock());
  for (std::int64_t order = first;; ++order) {
    store.commit({.jobs = {job(order)}}, [order, out](const std::string& error) {
      if (!error.empty() || ::write(out, &order, sizeof(order)) != sizeof(order)) ::_exit(1);
    });
    // A few in flight at a time, so that commits are grouped.
    static std::atomic<int> burst{0};
    if (++burst % 8 == 0) {
      std::promise<void> reached;
      store.commit({}, [&reached](const std::string&) { reached.set_value(); });
      reached.get_future().wait();
    }
  }
}

TEST(SqliteStoreCrash, NoAcknowledgedJobIsLostByKill9) {
  testing::TemporaryFolder folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "coat.db";
  std::mt19937 random(7);
  std::set<std::int64_t> acknowledged;
  std::int64_t next = 1;
  for (int round = 0; round < 20; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipe[0]);
      submit_until_killed(file, next, pipe[1]);
    }
    ::close(pipe[1]);
    const int wanted = std::uniform_int_distribution<int>(1, 60)(random);
    std::int64_t order = 0;
    for (int seen = 0; seen < wanted && ::read(pipe[0], &order, sizeof(order)) == sizeof(order); ++seen) {
      acknowledged.insert(order);
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    while (::read(pipe[0], &order, sizeof(order)) == sizeof(order)) acknowledged.insert(order);
    ::close(pipe[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";

    SqliteStore store({.file = file}, real_clock());
    std::set<std::int64_t> found;
    for (const JobRow& row : store.load().live_jobs) found.insert(row.order);
    for (const std::int64_t each : acknowledged)
      EXPECT_TRUE(found.contains(each)) << "round " << round << " job " << each;
    next = *found.rbegin() + 1;
  }
  EXPECT_GE(acknowledged.size(), 20U);
}

TEST(SqliteStore, ANewerSchemaIsRefused) {
  testing::TemporaryFolder folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "coat.db";
  { SqliteStore store({.file = file}, real_clock()); }
  {
    Connection connection(file.string(), Connection::Mode::kReadWrite);
    connection.prepare("INSERT INTO schema_version VALUES (?)").bind(schema_version() + 1).run();
  }
  try {
    SqliteStore store({.file = file}, real_clock());
    FAIL() << "it opened";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find("newer release"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--state-dir"), std::string::npos) << error.what();
  }
}

TEST(SqliteStore, AFileThatIsNoDatabaseIsRefused) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "coat.db") << std::string(5000, 'x');
  EXPECT_THROW(SqliteStore({.file = std::filesystem::path(folder.path()) / "coat.db"}, real_clock()),
               StoreError);
}

TEST(SqliteStore, TheLogIsWrittenBackByTheClock) {
  testing::TemporaryFolder folder;
  ManualClock clock;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "coat.db";
  std::atomic<std::int64_t> wal{0};
  SqliteStore store(
      {.file = file, .on_commit = [&wal](std::chrono::duration<double>, std::int64_t bytes) { wal = bytes; }},
      clock);
  std::promise<void> done;
  store.commit({.jobs = {job(1)}}, [&done](const std::string&) { done.set_value(); });
  done.get_future().wait();
  const std::filesystem::path log = file.string() + "-wal";
  EXPECT_GT(wal.load(), 0);
  ASSERT_GT(std::filesystem::file_size(log), 0U);
  clock.advance(std::chrono::seconds(61));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::filesystem::file_size(log) > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(std::filesystem::file_size(log), 0U);
  EXPECT_TRUE(store.find_job("jobs/j-1"));
}

TEST(StateFolder, ASecondOwnerIsRefusedAndToldTheFirstOne) {
  testing::TemporaryFolder folder;
  const StateFolder first(std::filesystem::path(folder / "state"));
  try {
    const StateFolder second(std::filesystem::path(folder / "state"));
    FAIL() << "two owners";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(::getpid())), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--state-dir"), std::string::npos) << error.what();
  }
}

TEST(StateFolder, ItIsFreeAgainAfterItsOwner) {
  testing::TemporaryFolder folder;
  { const StateFolder first(folder.path()); }
  EXPECT_NO_THROW(StateFolder(folder.path()));
}

TEST(StateFolder, AFolderThatCannotBeMadeIsRefused) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  try {
    const StateFolder state(std::filesystem::path(folder / "file") / "state");
    FAIL() << "it was made";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find("--state-dir"), std::string::npos) << error.what();
  }
}

TEST(StateFolder, AFolderThatTakesNoFilesIsRefused) {
  try {
    const StateFolder state("/proc/self");
    FAIL() << "it was taken";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find("--state-dir /proc/self is not writable"), std::string::npos)
        << error.what();
  }
}

TEST(WriteFileAtomically, ReplacesTheContent) {
  testing::TemporaryFolder folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "f";
  write_file_atomically(file, "one");
  write_file_atomically(file, "two");
  std::ifstream in(file);
  std::string text;
  in >> text;
  EXPECT_EQ(text, "two");
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".new"));
  EXPECT_THROW(write_file_atomically(std::filesystem::path(folder / "none") / "f", "x"), StoreError);
}

}  // namespace
}  // namespace coat::store
