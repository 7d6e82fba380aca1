#include "proto/common/byte_size.h"

#include <gtest/gtest.h>

namespace coat {
namespace {

TEST(ByteSize, UnitsOf1024WithThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1288490189), "1.2 GiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(bytes_text(150LL << 30), "150 GiB");
  EXPECT_EQ(bytes_text(INT64_MAX), "8192 PiB");
}

TEST(ByteSize, TwoThatDifferByAByteReadDifferently) {
  EXPECT_EQ(exact_bytes_text(1288490189), "1.2 GiB (1288490189 bytes)");
}

}  // namespace
}  // namespace coat
