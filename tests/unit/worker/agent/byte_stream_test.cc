#include "worker/agent/byte_stream.h"

#include <gtest/gtest.h>

namespace coat::agent {
namespace {

constexpr std::int64_t kBig = std::int64_t{100} * ByteStream::kMaxChunk;

TEST(ByteStreamTest, NothingIsSentBeforeTheOffsetIsKnown) {
  ByteStream stream;
  stream.begin_session(false, SteadyTime{});
  EXPECT_FALSE(stream.next(10, SteadyTime{}));
  EXPECT_FALSE(stream.complete(0));
  stream.on_ack(4, SteadyTime{});
  const auto range = stream.next(10, SteadyTime{});
  ASSERT_TRUE(range);
  EXPECT_EQ(range->offset, 4);
  EXPECT_EQ(range->size, 6U);
}

TEST(ByteStreamTest, ANewAttemptBeginsAtZeroAtOnce) {
  ByteStream stream;
  stream.begin_session(true, SteadyTime{});
  EXPECT_TRUE(stream.complete(0));
  const auto range = stream.next(3, SteadyTime{});
  ASSERT_TRUE(range);
  EXPECT_EQ(range->offset, 0);
}

TEST(ByteStreamTest, TheWindowBoundsWhatIsInFlight) {
  ByteStream stream;
  stream.begin_session(true, SteadyTime{});
  std::int64_t sent = 0;
  while (const auto range = stream.next(kBig, SteadyTime{})) {
    EXPECT_EQ(range->offset, sent);
    EXPECT_LE(static_cast<std::int64_t>(range->size), ByteStream::kMaxChunk);
    sent += static_cast<std::int64_t>(range->size);
    stream.on_sent(*range, SteadyTime{});
  }
  EXPECT_EQ(sent, ByteStream::kWindow);
  stream.on_ack(ByteStream::kMaxChunk, SteadyTime{});
  EXPECT_EQ(stream.next(kBig, SteadyTime{})->offset, sent);
}

TEST(ByteStreamTest, ALowerOffsetRewinds) {
  ByteStream stream;
  stream.begin_session(true, SteadyTime{});
  stream.on_sent({0, 100}, SteadyTime{});
  stream.on_ack(100, SteadyTime{});
  stream.on_ack(40, SteadyTime{});
  EXPECT_EQ(stream.next(100, SteadyTime{})->offset, 40);
}

TEST(ByteStreamTest, SilenceRewindsOnlyAfterItsPatience) {
  ByteStream stream;
  const SteadyTime start{};
  stream.begin_session(true, start);
  stream.on_sent({0, 100}, start);
  stream.on_ack(50, start + std::chrono::seconds(1));
  EXPECT_FALSE(stream.next(100, start + ByteStream::kPatience));
  const auto again = stream.next(100, start + std::chrono::seconds(1) + ByteStream::kPatience);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->offset, 50);
}

TEST(ByteStreamTest, CompleteWhenAllIsAcknowledged) {
  ByteStream stream;
  stream.begin_session(true, SteadyTime{});
  stream.on_sent({0, 100}, SteadyTime{});
  EXPECT_FALSE(stream.complete(100));
  stream.on_ack(100, SteadyTime{});
  EXPECT_TRUE(stream.complete(100));
}

}  // namespace
}  // namespace coat::agent
