#include "server/store/attempt_files.h"

#include <fstream>

#include <gtest/gtest.h>

#include "server/store/store.h"
#include "tests/support/temporary_folder.h"

namespace coat::store {
namespace {

class AttemptFilesTest : public ::testing::Test {
 protected:
  std::int64_t append(std::int64_t offset, const std::string& data) {
    return files_.append("jobs/a-1", 2, StreamKind::kLog, offset, data);
  }
  std::string all() { return files_.read("jobs/a-1", 2, StreamKind::kLog, 0, 1000); }

  testing::TemporaryFolder folder_;
  AttemptFiles files_{std::filesystem::path(folder_.path()) / "attempts"};
};

TEST_F(AttemptFilesTest, AppendsInOrder) {
  EXPECT_EQ(append(0, "hello "), 6);
  EXPECT_EQ(append(6, "world"), 11);
  EXPECT_EQ(all(), "hello world");
  EXPECT_EQ(files_.size("jobs/a-1", 2, StreamKind::kLog), 11);
  EXPECT_TRUE(
      std::filesystem::exists(std::filesystem::path(folder_.path()) / "attempts" / "a-1" / "2" / "log"));
}

TEST_F(AttemptFilesTest, RepeatsAreIgnoredAndOverlapsCut) {
  EXPECT_EQ(append(0, "abcd"), 4);
  EXPECT_EQ(append(0, "abcd"), 4);
  EXPECT_EQ(append(1, "bc"), 4);
  EXPECT_EQ(append(2, "cdef"), 6);
  EXPECT_EQ(all(), "abcdef");
}

TEST_F(AttemptFilesTest, AGapIsNotWritten) {
  EXPECT_EQ(append(5, "late"), 0);
  EXPECT_EQ(append(0, "ab"), 2);
  EXPECT_EQ(append(3, "x"), 2);
  EXPECT_EQ(all(), "ab");
}

TEST_F(AttemptFilesTest, KindsAndAttemptsAreApart) {
  append(0, "log");
  EXPECT_EQ(files_.append("jobs/a-1", 2, StreamKind::kMetrics, 0, "{}\n"), 3);
  EXPECT_EQ(files_.size("jobs/a-1", 1, StreamKind::kLog), 0);
  EXPECT_EQ(all(), "log");
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(folder_.path()) / "attempts" / "a-1" / "2" /
                                      "metrics.jsonl"));
}

TEST_F(AttemptFilesTest, ReadsPieces) {
  append(0, "0123456789");
  EXPECT_EQ(files_.read("jobs/a-1", 2, StreamKind::kLog, 3, 4), "3456");
  EXPECT_EQ(files_.read("jobs/a-1", 2, StreamKind::kLog, 8, 4), "89");
  EXPECT_EQ(files_.read("jobs/a-1", 2, StreamKind::kLog, 10, 4), "");
  EXPECT_EQ(files_.read("jobs/none-1", 1, StreamKind::kLog, 0, 4), "");
}

TEST_F(AttemptFilesTest, WhereItCannotWriteItSaysSo) {
  std::ofstream(folder_ / "attempts") << "a file";
  EXPECT_THROW(append(0, "x"), StoreError);
}

}  // namespace
}  // namespace coat::store
