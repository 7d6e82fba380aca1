#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/kernels/api/normal_distribution.h"

namespace coat::kernels::test {
namespace {

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {17, 16}, {129, 17}, {1000, 3}, {1, 13824}};

double cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }

// The error that normal_distribution.h states, where FP32 holds the result as a normal number.
TEST(NormalDistributionTest, IsWithinItsBound) {
  for (int i = 0; i <= 13000; ++i) {
    const float x = static_cast<float>(i) * 1e-3f;
    const double exact = cdf(-double{x});
    const double bound = (double{x} * double{x} / 2 + 12) * 0x1p-24;
    ASSERT_LE(std::fabs(double{normal_tail_f32(x)} - exact), bound * exact + 0x1p-149) << x;
    ASSERT_LE(std::fabs(double{normal_cdf_f32(-x)} - exact), bound * exact + 0x1p-149) << x;
    ASSERT_LE(std::fabs(double{normal_cdf_f32(x)} - (1 - exact)), (1 + 12 * exact) * 0x1p-23) << x;
    ASSERT_LE(std::fabs(double{normal_pdf_f32(x)} - density(x)), bound * density(x) + 0x1p-149) << x;
  }
  EXPECT_NEAR(double{normal_cdf_f32(0.0f)}, 0.5, 12 * 0x1p-25);
  EXPECT_EQ(normal_cdf_f32(40.0f), 1.0f);
  EXPECT_EQ(normal_cdf_f32(-40.0f), 0.0f);
}

class GeluTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, GeluTest,
                         testing::Values(kFp32, kBf16, kE4M3Group16, kE4M3Group20, kE4M3Tensor));

TEST_P(GeluTest, ForwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const OwnedMatrix x =
        make_matrix(normal_values(shape.rows * shape.cols, 1, 3), GetParam(), shape.rows, shape.cols);
    OwnedMatrix y(kBf16, shape.rows, shape.cols);
    float amax = -1;
    cpu_kernels().gelu_forward({.x = x.view(), .y = y.view(), .amax_out = &amax}, {});
    const std::vector<double> in = decoded(x.view()), out = decoded(y.view());
    double largest = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double exact = in[i] * cdf(in[i]);
      const double fp32_error = std::fabs(exact) * (in[i] * in[i] / 2 + 16) * 0x1p-24;
      ASSERT_LE(std::fabs(out[i] - exact), half_step(Format::kBf16, exact, 1) * 1.01 + fp32_error);
      largest = std::max(largest, std::fabs(out[i]));
    }
    EXPECT_EQ(double{amax}, largest);
  }
}

TEST_P(GeluTest, BackwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const std::int64_t count = shape.rows * shape.cols;
    const OwnedMatrix x = make_matrix(normal_values(count, 1, 3), GetParam(), shape.rows, shape.cols);
    const OwnedMatrix dy = make_matrix(normal_values(count, 2, 0.1), kBf16, shape.rows, shape.cols);
    OwnedMatrix dx(kBf16, shape.rows, shape.cols);
    float amax = -1;
    cpu_kernels().gelu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view(), .amax_out = &amax}, {});
    const std::vector<double> in = decoded(x.view()), g = decoded(dy.view()), out = decoded(dx.view());
    double largest = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double exact = g[i] * (cdf(in[i]) + in[i] * density(in[i]));
      // The slope passes through zero as a sum of two terms.
      const double terms = std::fabs(g[i]) * (cdf(in[i]) + std::fabs(in[i]) * density(in[i]));
      const double fp32_error = terms * (in[i] * in[i] / 2 + 16) * 0x1p-24;
      ASSERT_LE(std::fabs(out[i] - exact), half_step(Format::kBf16, exact, 1) * 1.01 + fp32_error);
      largest = std::max(largest, std::fabs(out[i]));
    }
    EXPECT_EQ(double{amax}, largest);
  }
}

TEST(GeluEdgeTest, LargeValuesZerosNanAndWrongShapes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const OwnedMatrix x =
      make_matrix({0, 300, -300, infinity, std::numeric_limits<float>::quiet_NaN(), -0.0f}, kFp32, 1, 6);
  OwnedMatrix y(kBf16, 1, 6), wrong(kBf16, 2, 3);
  cpu_kernels().gelu_forward({.x = x.view(), .y = y.view()}, {});
  const std::vector<double> out = decoded(y.view());
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 300);
  EXPECT_EQ(out[2], 0);
  EXPECT_TRUE(std::isinf(out[3]));
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], 0);
  EXPECT_THROW(cpu_kernels().gelu_forward({.x = x.view(), .y = wrong.view()}, {}), std::logic_error);
  EXPECT_THROW(cpu_kernels().gelu_backward({.x = x.view(), .dy = wrong.view(), .dx = y.view()}, {}),
               std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
