#include <filesystem>
#include <fstream>
#include <functional>
#include <future>

#include <gmock/gmock.h>

#include "tests/unit/worker/core/checkpoint/fixture.h"
#include "worker/core/base/error.h"

namespace coat::checkpoint {
namespace {

using coat::testing::read_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <typename Error, typename Action>
std::string reason(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

void flip_byte(const std::string& path, std::size_t at) {
  std::string bytes = read_file(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 0x10);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(CheckpointName, HasEightDigitsOrMore) {
  EXPECT_EQ(checkpoint_name(100), "step-00000100");
  EXPECT_EQ(checkpoint_name(1234567890), "step-1234567890");
}

TEST_F(StoreTest, AnEmptyFolderHoldsNothing) {
  Store checkpoints = store(real_);
  checkpoints.open();
  EXPECT_FALSE(checkpoints.has_checkpoints());
  State state;
  std::vector<std::string> warnings;
  EXPECT_EQ(checkpoints.load(state.expected(), &warnings), std::nullopt);
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_THAT(names(), ElementsAre("epoch", "lock"));
}

TEST_F(StoreTest, WhatIsSavedComesBackBitForBit) {
  State written;
  {
    Store checkpoints = store(real_);
    checkpoints.open();
    const Saved saved = checkpoints.save(written.content(100));
    EXPECT_EQ(saved.path, job("step-00000100"));
    std::int64_t bytes = 0;
    for (const std::string& name : real_.list(saved.path)) {
      bytes += static_cast<std::int64_t>(std::filesystem::file_size(saved.path + "/" + name));
    }
    EXPECT_EQ(saved.bytes, bytes);
  }
  EXPECT_THAT(real_.list(job("step-00000100")),
              ElementsAre("manifest.json", "optimizer.bin", "parameters.bin"));
  Store checkpoints = store(real_, 2);
  checkpoints.open();
  State read;
  ASSERT_FALSE(read == written);
  std::vector<std::string> warnings;
  const auto loaded = checkpoints.load(read.expected(), &warnings);
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(read == written);
  EXPECT_EQ(loaded->progress, written.content(100).progress);
  EXPECT_EQ(loaded->identity, State::identity());
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(StoreTest, KeepsTheNewest) {
  Store checkpoints = store(real_, 1, 2);
  checkpoints.open();
  State state;
  for (const std::int64_t step : {5, 90, 100, 20000}) checkpoints.save(state.content(step));
  EXPECT_THAT(list_checkpoints(real_, folder_ / "job"),
              ElementsAre(job("step-00020000"), job("step-00000100")));
  EXPECT_THAT(names(), SizeIs(4));
}

TEST_F(StoreTest, TheSameStepIsReplaced) {
  Store checkpoints = store(real_);
  checkpoints.open();
  State state;
  checkpoints.save(state.content(7));
  Content again = state.content(7);
  again.progress.tokens = 1;
  checkpoints.save(again);
  std::vector<std::string> warnings;
  EXPECT_EQ(checkpoints.load(state.expected(), &warnings)->progress.tokens, 1);
  EXPECT_THAT(names(), ElementsAre("epoch", "lock", "step-00000007"));
}

// Each file, its first, middle and last byte.
TEST_F(StoreTest, AFlippedByteFallsBackToTheOlderOne) {
  for (const std::string file : {"parameters.bin", "optimizer.bin", "manifest.json"}) {
    for (const double part : {0.0, 0.5, 1.0}) {
      std::filesystem::remove_all(folder_ / "job");
      Store checkpoints = store(real_);
      checkpoints.open();
      State state;
      checkpoints.save(state.content(100));
      const State older = state;
      checkpoints.save(state.content(200));
      const std::string path = job("step-00000200/" + file);
      const auto size =
          static_cast<double>(std::filesystem::file_size(path) - (file == "manifest.json" ? 2 : 1));
      flip_byte(path, static_cast<std::size_t>(part * size));
      std::vector<std::string> warnings;
      const auto loaded = checkpoints.load(state.expected(), &warnings);
      ASSERT_TRUE(loaded);
      EXPECT_EQ(loaded->progress.step, 100);
      EXPECT_TRUE(state == older);
      ASSERT_THAT(warnings, SizeIs(1));
      EXPECT_THAT(warnings[0], AllOf(HasSubstr(path), HasSubstr("damaged")));
      EXPECT_THAT(names(), ElementsAre("damaged-step-00000200", "epoch", "lock", "step-00000100"));
    }
  }
}

TEST_F(StoreTest, OnlyDamagedOnesAreAnErrorWithFileAndHash) {
  Store checkpoints = store(real_);
  checkpoints.open();
  State state;
  checkpoints.save(state.content(100));
  flip_byte(job("step-00000100/parameters.bin"), 600);
  std::vector<std::string> warnings;
  EXPECT_THAT(reason<CheckpointError>([&] { checkpoints.load(state.expected(), &warnings); }),
              AllOf(HasSubstr("step-00000100/parameters.bin"), HasSubstr("has SHA-256 "),
                    HasSubstr("manifest says")));
  // Nothing was moved: a copy of the file may bring it back.
  EXPECT_THAT(names(), ElementsAre("epoch", "lock", "step-00000100"));
}

TEST_F(StoreTest, TruncatedLongerAndMissingFilesAreDamage) {
  const auto damaged_by = [&](const std::function<void(const std::string&)>& damage) {
    std::filesystem::remove_all(folder_ / "job");
    Store checkpoints = store(real_);
    checkpoints.open();
    State state;
    checkpoints.save(state.content(100));
    damage(job("step-00000100/"));
    std::vector<std::string> warnings;
    return reason<CheckpointError>([&] { checkpoints.load(state.expected(), &warnings); });
  };
  EXPECT_THAT(
      damaged_by([](const std::string& path) { std::filesystem::resize_file(path + "optimizer.bin", 299); }),
      HasSubstr("ends after 299 of 300 bytes"));
  EXPECT_THAT(
      damaged_by([](const std::string& path) { std::filesystem::resize_file(path + "optimizer.bin", 301); }),
      HasSubstr("longer than its manifest says"));
  EXPECT_THAT(damaged_by([](const std::string& path) { std::filesystem::remove(path + "parameters.bin"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(damaged_by([](const std::string& path) { std::filesystem::remove(path + "manifest.json"); }),
              HasSubstr("manifest.json"));
}

TEST_F(StoreTest, AnotherModelIsAnErrorThatNamesTheField) {
  Store checkpoints = store(real_);
  checkpoints.open();
  State state;
  checkpoints.save(state.content(100));
  std::vector<std::string> warnings;
  Expected expected = state.expected();
  expected.identity[0].second = "512";
  EXPECT_THAT(reason<CheckpointError>([&] { checkpoints.load(expected, &warnings); }),
              AllOf(HasSubstr("model.hidden = 256"), HasSubstr("asks for 512")));
  expected = state.expected();
  expected.identity.emplace_back("recipe.moment1", "e4m3");
  EXPECT_THAT(reason<CheckpointError>([&] { checkpoints.load(expected, &warnings); }),
              HasSubstr("recipe.moment1 = nothing"));
  expected = state.expected();
  expected.parameters[0].shape = {100, 3};
  EXPECT_THAT(reason<CheckpointError>([&] { checkpoints.load(expected, &warnings); }),
              AllOf(HasSubstr("weight as float32 [3, 100]"), HasSubstr("float32 [100, 3]")));
  expected = state.expected();
  expected.optimizer[0].name = "bias.moment1";
  EXPECT_THAT(reason<CheckpointError>([&] { checkpoints.load(expected, &warnings); }),
              HasSubstr("'bias.moment1'"));
  expected = state.expected();
  expected.optimizer.clear();
  EXPECT_THAT(reason<CheckpointError>([&] { checkpoints.load(expected, &warnings); }),
              HasSubstr("holds 1 tensors, the job has 0"));
}

TEST_F(StoreTest, AHigherEpochTakesTheFolderOver) {
  State state;
  Store old = store(real_, 4);
  old.open();
  old.save(state.content(100));
  Store newer = store(real_, 5);
  newer.open();
  EXPECT_THAT(reason<FencedError>([&] { old.save(state.content(200)); }),
              AllOf(HasSubstr("belongs to epoch 5"), HasSubstr("has epoch 4")));
  EXPECT_THAT(names(), ElementsAre("epoch", "lock", "step-00000100"));
  EXPECT_NE(reason<FencedError>([&] { store(real_, 4).open(); }), "accepted");
  newer.save(state.content(150));
  EXPECT_THAT(list_checkpoints(real_, folder_ / "job"),
              ElementsAre(job("step-00000150"), job("step-00000100")));
  // The same epoch may come back: its own process was restarted.
  EXPECT_EQ(reason<FencedError>([&] { store(real_, 5).open(); }), "accepted");
}

TEST_F(StoreTest, AFrozenHolderOfTheLockKeepsNoNewerEpochOut) {
  using std::chrono::milliseconds;
  State state;
  Store old = store(real_, 4);
  old.open();
  old.save(state.content(100));
  // Frozen between its look at the epoch and its rename: the lock held, the new checkpoint written beside its
  // place.
  const auto frozen = real_.lock(job("lock"), milliseconds(0));
  std::filesystem::create_directories(job("step-00000200.tmp-4"));

  Store newer(real_, folder_ / "job", 5, 2, milliseconds(30));
  newer.open();
  EXPECT_THAT(names(), ElementsAre("epoch", "lock", "step-00000100"));
  EXPECT_THROW(real_.rename(job("step-00000200.tmp-4"), job("step-00000200")), FileError);
  newer.save(state.content(150));
  EXPECT_THAT(reason<FencedError>([&] { old.save(state.content(300)); }), HasSubstr("belongs to epoch 5"));
}

TEST_F(StoreTest, ALockIsWaitedFor) {
  using std::chrono::milliseconds;
  std::filesystem::create_directories(job(""));
  auto first = real_.lock(job("lock"), milliseconds(0));
  std::future<std::unique_ptr<FileLock>> second =
      std::async(std::launch::async, [&] { return real_.lock(job("lock"), std::chrono::minutes(5)); });
  EXPECT_EQ(second.wait_for(milliseconds(30)), std::future_status::timeout);
  first.reset();
  EXPECT_NE(second.get(), nullptr);
}

TEST_F(StoreTest, LeftoversOfDeadWritersAreRemovedAndOthersAreNot) {
  for (const std::string name :
       {"step-00000100.tmp-3", "step-00000200.tmp-9", "notes", "step-00000300.old-3"}) {
    std::filesystem::create_directories(job(name));
  }
  std::filesystem::create_directories(job("step-00000400"));
  std::filesystem::create_directories(job("step-00000400.old-3"));
  store(real_, 5).open();
  // 300: its writer stopped between moving it away and the new one in, so it is back. 200 is a newer epoch's.
  EXPECT_THAT(names(),
              ElementsAre("epoch", "lock", "notes", "step-00000200.tmp-9", "step-00000300", "step-00000400"));
}

TEST_F(StoreTest, AnEpochFileThatIsNoneIsNotGuessedAt) {
  store(real_).open();
  folder_.write("job/epoch", "soon\n");
  EXPECT_THAT(reason<CheckpointError>([&] { store(real_, 9).open(); }),
              HasSubstr("holds no epoch but 'soon'"));
}

TEST_F(StoreTest, AFolderThatCannotBeWrittenIsFoundAtTheStart) {
  folder_.write("job", "a file in the way");
  EXPECT_THAT(reason<CheckpointError>([&] { store(real_).open(); }),
              AllOf(HasSubstr(folder_ / "job"), HasSubstr("--checkpoint-dir")));
}

}  // namespace
}  // namespace coat::checkpoint
