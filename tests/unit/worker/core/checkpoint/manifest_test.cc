#include "worker/core/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat::checkpoint {
namespace {

using ::testing::HasSubstr;

Manifest sample() {
  Manifest manifest{.spec_json = "{\"name\":\"a \\\"quoted\\\" job\"}", .epoch = 3};
  manifest.progress = {.step = 100,
                       .data_position = 800,
                       .tokens = 204800,
                       .nonfinite_steps = 2,
                       .consecutive_nonfinite_steps = 1,
                       .first_loss = 5.5451774444795623,
                       .recent_losses = {0.1 + 0.2, 5e-324, 1.0 / 3}};
  manifest.identity = {{"recipe", "coat"}, {"model.hidden", "256"}};
  manifest.files = {
      {"parameters.bin", 1228, std::string(64, 'a'), {{"weight", "float32", {3, 100}, 1200, 0}}},
      {"optimizer.bin", 0, std::string(64, 'b'), {}}};
  return manifest;
}

std::string reason_of(const std::string& text) {
  try {
    parse_manifest(text);
  } catch (const ManifestError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Manifest, ComesBackUnchangedToTheLastBit) { EXPECT_EQ(parse_manifest(to_json(sample())), sample()); }

// Any byte, any bit of it: never a manifest with other content.
TEST(Manifest, AFlippedBitNeverChangesWhatIsRead) {
  const std::string good = to_json(sample());
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 3, 6}) {
      std::string text = good;
      text[at] = static_cast<char>(text[at] ^ (1 << bit));
      try {
        EXPECT_EQ(parse_manifest(text), sample()) << "byte " << at << " bit " << bit;
      } catch (const ManifestError&) {
        ++refused;
      }
    }
  }
  // Only white space between the values may change without harm.
  EXPECT_GT(refused, static_cast<int>(good.size()) * 3 / 2);
}

TEST(Manifest, EveryCutIsRefused) {
  const std::string good = to_json(sample());
  // The last byte is the line feed after the object.
  for (std::size_t size = 0; size + 1 < good.size(); ++size)
    EXPECT_NE(reason_of(good.substr(0, size)), "accepted");
}

TEST(Manifest, NamesANewerFormat) {
  std::string text = to_json(sample());
  const std::string version = "\"format_version\": 1";
  text.replace(text.find(version), version.size(), "\"format_version\": 2");
  EXPECT_THAT(reason_of(text), HasSubstr("format version 2, newer than this program's 1"));
}

}  // namespace
}  // namespace coat::checkpoint
