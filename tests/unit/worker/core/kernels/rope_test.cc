#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"

namespace coat::kernels::test {
namespace {

struct Case {
  std::int64_t rows, heads, head_dim, sequence_length;
};

RopeArgs args_of(OwnedMatrix& x, const Case& shape, bool inverse = false) {
  return {.x = x.view(),
          .heads = shape.heads,
          .head_dim = shape.head_dim,
          .sequence_length = shape.sequence_length,
          .theta = 10000.0f,
          .inverse = inverse};
}

TEST(RopeTest, RotatesPairsByTheirPosition) {
  for (const Case& shape : {Case{1, 1, 2, 1}, Case{34, 3, 8, 17}, Case{129, 2, 64, 129}, Case{20, 1, 6, 7}}) {
    const std::int64_t cols = shape.heads * shape.head_dim, half = shape.head_dim / 2;
    OwnedMatrix x = make_matrix(normal_values(shape.rows * cols, 1), kBf16, shape.rows, cols);
    const std::vector<double> before = decoded(x.view());
    float amax = -1;
    RopeArgs args = args_of(x, shape);
    args.amax_out = &amax;
    cpu_kernels().rope(args, {});
    const std::vector<double> after = decoded(x.view());
    double largest = 0;
    for (const double value : after) largest = std::max(largest, std::fabs(value));
    EXPECT_EQ(double{amax}, largest);
    for (std::int64_t i = 0; i < shape.rows * cols; ++i) {
      const std::int64_t position = i / cols % shape.sequence_length, in_head = i % shape.head_dim;
      const double angle =
          static_cast<double>(position) *
          std::pow(10000.0, -2.0 * static_cast<double>(in_head % half) / static_cast<double>(shape.head_dim));
      const bool low = in_head < half;
      const double self = before[static_cast<std::size_t>(i)];
      const double other = before[static_cast<std::size_t>(low ? i + half : i - half)];
      const double exact = self * std::cos(angle) + (low ? -1 : 1) * other * std::sin(angle);
      const double fp32_error = 8 * 0x1p-24 * (std::fabs(self) + std::fabs(other));
      ASSERT_LE(std::fabs(after[static_cast<std::size_t>(i)] - exact),
                half_step(Format::kBf16, exact, 1) * 1.01 + fp32_error)
          << i;
    }
  }
}

TEST(RopeTest, InverseUndoesItUpToRounding) {
  const Case shape{64, 2, 32, 32};
  OwnedMatrix x = make_matrix(normal_values(64 * 64, 2), kBf16, 64, 64);
  const std::vector<double> before = decoded(x.view());
  cpu_kernels().rope(args_of(x, shape), {});
  cpu_kernels().rope(args_of(x, shape, true), {});
  const std::vector<double> after = decoded(x.view());
  for (std::size_t i = 0; i < after.size(); ++i) {
    // Two roundings to BF16 of values no longer than the pair.
    const std::size_t partner = i % 32 < 16 ? i + 16 : i - 16;
    const double length = std::hypot(before[i], before[partner]);
    ASSERT_NEAR(after[i], before[i], 3 * length * 0x1p-8);
  }
}

TEST(RopeTest, PositionZeroIsUntouchedAndBadShapesAreRefused) {
  OwnedMatrix x = make_matrix(normal_values(4 * 8, 3), kBf16, 4, 8);
  const std::vector<std::uint8_t> before = x.data();
  cpu_kernels().rope(args_of(x, {4, 2, 4, 1}), {});
  EXPECT_EQ(x.data(), before);
  EXPECT_THROW(cpu_kernels().rope(args_of(x, {4, 3, 4, 1}), {}), std::logic_error);
  EXPECT_THROW(cpu_kernels().rope(args_of(x, {4, 8, 1, 1}), {}), std::logic_error);
  EXPECT_THROW(cpu_kernels().rope(args_of(x, {4, 2, 4, 0}), {}), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
