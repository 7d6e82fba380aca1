#include "worker/core/quant/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <gtest/gtest.h>

namespace coat {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What both formats have in common, so that each test runs on both.
struct E4M3 {
  static constexpr int kLastFinite = 0x7E;
  static constexpr float kLargest = 448.0f;
  static std::uint8_t encode(float value) { return encode_e4m3(value); }
  static float decode(int code) { return decode_e4m3(static_cast<std::uint8_t>(code)); }
  static float torch_decode(int code) {
    return c10::Float8_e4m3fn(static_cast<std::uint8_t>(code), c10::Float8_e4m3fn::from_bits());
  }
  static int torch_encode(float value) { return c10::Float8_e4m3fn(value).x; }
};
struct E5M2 {
  static constexpr int kLastFinite = 0x7B;
  static constexpr float kLargest = 57344.0f;
  static std::uint8_t encode(float value) { return encode_e5m2(value); }
  static float decode(int code) { return decode_e5m2(static_cast<std::uint8_t>(code)); }
  static float torch_decode(int code) {
    return c10::Float8_e5m2(static_cast<std::uint8_t>(code), c10::Float8_e5m2::from_bits());
  }
  static int torch_encode(float value) { return c10::Float8_e5m2(value).x; }
};

template <typename Format>
class Fp8Test : public testing::Test {};
using Formats = testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Fp8Test, Formats);

TYPED_TEST(Fp8Test, DecodesEveryCodeAsLibtorchDoes) {
  for (int code = 0; code < 256; ++code) {
    const float ours = TypeParam::decode(code), theirs = TypeParam::torch_decode(code);
    if (std::isnan(theirs)) {
      EXPECT_TRUE(std::isnan(ours)) << code;
    } else {
      EXPECT_EQ(ours, theirs) << code;
      EXPECT_EQ(std::signbit(ours), std::signbit(theirs)) << code;
    }
  }
}

TYPED_TEST(Fp8Test, EveryFiniteCodeSurvivesARoundTrip) {
  for (int code = 0; code <= TypeParam::kLastFinite; ++code) {
    EXPECT_EQ(TypeParam::encode(TypeParam::decode(code)), code);
    EXPECT_EQ(TypeParam::encode(TypeParam::decode(code | 0x80)), code | 0x80);
  }
}

TYPED_TEST(Fp8Test, MidpointsGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  for (int code = 0; code < TypeParam::kLastFinite; ++code) {
    const float middle = (TypeParam::decode(code) + TypeParam::decode(code + 1)) / 2;
    EXPECT_EQ(TypeParam::encode(middle), code + code % 2) << code;
    EXPECT_EQ(TypeParam::encode(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(TypeParam::encode(std::nextafter(middle, kInfinity)), code + 1) << code;
    EXPECT_EQ(TypeParam::encode(-middle), (code + code % 2) | 0x80) << code;
  }
}

TYPED_TEST(Fp8Test, SaturatesAndKeepsNan) {
  const int last = TypeParam::kLastFinite;
  EXPECT_EQ(TypeParam::decode(last), TypeParam::kLargest);
  for (const float value : {TypeParam::kLargest * 1.01f, TypeParam::kLargest * 2, 1e30f, kInfinity}) {
    EXPECT_EQ(TypeParam::encode(value), last) << value;
    EXPECT_EQ(TypeParam::encode(-value), last | 0x80) << value;
  }
  EXPECT_EQ(TypeParam::encode(std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(TypeParam::encode(-std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_TRUE(std::isnan(TypeParam::decode(0x7F)));
}

TYPED_TEST(Fp8Test, HalfOfTheSmallestSubnormalIsTheBorderToZero) {
  const float half = TypeParam::decode(1) / 2;
  EXPECT_EQ(TypeParam::encode(half), 0);
  EXPECT_EQ(TypeParam::encode(std::nextafter(half, kInfinity)), 1);
  EXPECT_EQ(TypeParam::encode(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(TypeParam::encode(-0.0f), 0x80);
}

// Bit patterns all over FP32; libtorch's E4M3 does not saturate, so the input is clamped first (COAT.md 5.1
// fact 2).
TYPED_TEST(Fp8Test, EncodesAsLibtorchWithinTheRange) {
  std::int64_t compared = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 1'009) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    const float clamped = std::clamp(value, -TypeParam::kLargest, TypeParam::kLargest);
    ASSERT_EQ(TypeParam::encode(value), TypeParam::torch_encode(clamped)) << value;
    ++compared;
  }
  EXPECT_GT(compared, 4'000'000);
}

// COAT.md 5.1 fact 1.
TEST(Fp8FormatTest, CountsAndBordersOfTheFormats) {
  EXPECT_EQ(decode_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(decode_e4m3(0x08), 0x1p-6f);
  EXPECT_EQ(decode_e5m2(0x01), 0x1p-16f);
  EXPECT_EQ(decode_e5m2(0x04), 0x1p-14f);
  EXPECT_EQ(decode_e5m2(0x7C), kInfinity);
  EXPECT_TRUE(std::isnan(decode_e5m2(0x7D)));
  int e4m3_finite = 0, e5m2_finite = 0;
  for (int code = 0; code < 0x80; ++code) {
    e4m3_finite += std::isfinite(E4M3::decode(code)) ? 1 : 0;
    e5m2_finite += std::isfinite(E5M2::decode(code)) ? 1 : 0;
  }
  EXPECT_EQ(e4m3_finite, 127);
  EXPECT_EQ(e5m2_finite, 124);
  EXPECT_NEAR(std::log2(448.0 / 0x1p-9), 17.8074, 1e-4);
  EXPECT_NEAR(std::log2(57344.0 / 0x1p-16), 31.8074, 1e-4);
}

}  // namespace
}  // namespace coat
