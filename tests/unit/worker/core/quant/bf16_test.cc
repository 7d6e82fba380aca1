#include "worker/core/quant/bf16.h"

#include <cmath>
#include <limits>

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

namespace coat {
namespace {

TEST(Bf16Test, RoundsAsLibtorchAllOverFp32) {
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 997) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(round_bf16(value))) << bits;
    } else {
      ASSERT_EQ(encode_bf16(value), c10::BFloat16(value).x) << value;
    }
  }
}

TEST(Bf16Test, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float value = decode_bf16(bits);
    if (!std::isnan(value)) {
      ASSERT_EQ(encode_bf16(value), bits);
    }
  }
}

TEST(Bf16Test, TiesGoToEvenAndNanStays) {
  EXPECT_EQ(round_bf16(1.0f + 0x1p-8f), 1.0f);
  EXPECT_EQ(round_bf16(1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);
  EXPECT_EQ(round_bf16(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  // A NaN whose payload lies in the lower half alone.
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0x7F800001u))));
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0xFFFFFFFFu))));
}

}  // namespace
}  // namespace coat
