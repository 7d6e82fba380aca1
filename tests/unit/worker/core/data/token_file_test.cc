#include "worker/core/data/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"
#include "worker/core/base/error.h"
#include "worker/core/base/sha256.h"

namespace coat::data {
namespace {

using coat::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Action>
std::string data_error(Action&& action) {
  try {
    action();
  } catch (const DataError& error) {
    EXPECT_EQ(error.field, "data.path");
    EXPECT_FALSE(error.fix.empty());
    return error.what();
  }
  return "accepted";
}

std::string opening(const std::string& path, TokenFormat format = TokenFormat::kBytes) {
  return data_error([&] { TokenFile file(path, format); });
}

TEST(TokenFormat, NamesAreStrict) {
  EXPECT_EQ(token_format("bytes"), TokenFormat::kBytes);
  EXPECT_EQ(token_format("uint16"), TokenFormat::kUint16);
  EXPECT_EQ(token_format("uint32"), TokenFormat::kUint32);
  EXPECT_THROW(token_format("int8"), SpecError);
}

TEST(TokenFile, RefusesWhatIsNoFileOfTokens) {
  const TemporaryFolder folder;
  EXPECT_THAT(opening(folder / "none"), AllOf(HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(opening(folder.path()), HasSubstr("is a directory"));
  EXPECT_THAT(opening(folder.write("empty", "")), HasSubstr("is empty"));
  EXPECT_THAT(opening(folder.write("odd", "abc"), TokenFormat::kUint16),
              HasSubstr("3 bytes, no multiple of the 2"));
  EXPECT_THAT(opening(folder.write("six", "abcdef"), TokenFormat::kUint32),
              HasSubstr("no multiple of the 4"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(opening(folder / "pipe"), HasSubstr("not a regular file"));
  EXPECT_EQ(opening(folder.write("good", "abcd")), "accepted");
}

// In a process of its own, which gives the superuser's rights up.
TEST(TokenFile, RefusesAnUnreadableFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("secret", "abcd");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const auto try_it = [&] {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) std::_Exit(2);
    const std::string reason = opening(path);
    std::_Exit(reason.find("Permission denied") != std::string::npos ? 0 : 1);
  };
  EXPECT_EXIT(try_it(), ::testing::ExitedWithCode(0), "");
}

TEST(TokenFile, ReadsLittleEndianIds) {
  const TemporaryFolder folder;
  const std::string bytes("\x01\x02\x03\x00\xFF\x00\x00\x00", 8);
  const std::string path = folder.write("tokens", bytes);
  std::vector<std::int32_t> ids(4);
  TokenFile(path, TokenFormat::kUint16).read(0, 4, 65536, ids.data());
  EXPECT_THAT(ids, ElementsAre(0x0201, 3, 255, 0));
  TokenFile(path, TokenFormat::kUint32).read(0, 2, 1 << 24, ids.data());
  EXPECT_THAT(ids, ElementsAre(0x00030201, 255, 255, 0));
  TokenFile(path, TokenFormat::kBytes).read(2, 4, 256, ids.data());
  EXPECT_THAT(ids, ElementsAre(3, 0, 255, 0));
}

TEST(TokenFile, ScanCountsEntropyAndHash) {
  const TemporaryFolder folder;
  const TokenFile file(folder.write("text", "aabc"), TokenFormat::kBytes);
  const TokenStatistics statistics = file.scan(256, true);
  EXPECT_EQ(statistics.tokens, 4);
  EXPECT_EQ(statistics.distinct, 3);
  EXPECT_NEAR(statistics.unigram_entropy, 0.5 * std::log(2) + 0.5 * std::log(4), 1e-15);
  EXPECT_EQ(statistics.sha256, sha256_hex("aabc"));
  EXPECT_EQ(file.scan(256, false).sha256, "");
}

// The published vectors of FIPS 180-4.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TokenFile, NamesTheFirstIdOutsideTheVocabulary) {
  const TemporaryFolder folder;
  const std::string bytes("\x01\x00\x2C\x01\xFF\xFF", 6);
  const TokenFile file(folder.write("tokens", bytes), TokenFormat::kUint16);
  EXPECT_EQ(data_error([&] { file.scan(65536, false); }), "accepted");
  EXPECT_THAT(data_error([&] { file.scan(300, false); }),
              AllOf(HasSubstr("token id 300 at token 1 (byte 2)"), HasSubstr("vocabulary of 300")));
  std::int32_t id = 0;
  EXPECT_THAT(data_error([&] { file.read(2, 1, 300, &id); }), HasSubstr("token id 65535 at token 2"));
}

// The block border of the scan lies at 4 MiB.
TEST(TokenFile, ScanGoesOverBlockBorders) {
  const TemporaryFolder folder;
  std::string bytes((std::size_t{4} << 20) + 4, '\0');
  bytes[bytes.size() - 2] = 9;
  const TokenFile file(folder.write("tokens", bytes), TokenFormat::kUint16);
  EXPECT_EQ(file.scan(10, true).sha256, sha256_hex(bytes));
  EXPECT_THAT(data_error([&] { file.scan(9, false); }), HasSubstr("token id 9 at token 2097153"));
}

TEST(TokenFile, AFileThatChangesItsSizeIsAnErrorAndNoSignal) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tokens", std::string(8192, 'a'));
  const TokenFile file(path, TokenFormat::kBytes);
  std::int32_t id = 0;
  std::filesystem::resize_file(path, 100);
  EXPECT_THAT(data_error([&] { file.read(8000, 1, 256, &id); }),
              AllOf(HasSubstr("had 8192 bytes when the job started"), HasSubstr("100 now")));
  EXPECT_THAT(data_error([&] { file.scan(256, false); }), HasSubstr("100 now"));
  std::filesystem::resize_file(path, 10000);
  EXPECT_THAT(data_error([&] { file.read(0, 1, 256, &id); }), HasSubstr("10000 now"));
}

}  // namespace
}  // namespace coat::data
