#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"

namespace coat::kernels::test {
namespace {

constexpr float kEps = 1e-5f;

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {17, 16}, {129, 17}, {65, 256}, {1000, 24}, {3, 5120}};

class LayerNormTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, LayerNormTest, testing::Values(kFp32, kBf16, kE4M3Group16, kE4M3Tensor));

struct Forward {
  OwnedMatrix x, y;
  std::vector<float> mean, rstd;
  float amax = 0;
};

Forward run_forward(const TensorFormat& format, const Shape& shape) {
  std::vector<float> values = normal_values(shape.rows * shape.cols, 1, 2.0);
  for (float& value : values) value += 0.5f;
  const auto rows = static_cast<std::size_t>(shape.rows);
  Forward result{make_matrix(values, format, shape.rows, shape.cols),
                 OwnedMatrix(kBf16, shape.rows, shape.cols), std::vector<float>(rows),
                 std::vector<float>(rows)};
  cpu_kernels().layer_norm_forward({.x = result.x.view(),
                                    .eps = kEps,
                                    .y = result.y.view(),
                                    .mean = result.mean.data(),
                                    .rstd = result.rstd.data(),
                                    .amax_out = &result.amax},
                                   {});
  return result;
}

// Lanes of cols / 16 terms, then a few roundings, relative to the size of the terms.
double fp32_error(const Shape& shape) { return (static_cast<double>(shape.cols) / 16 + 16) * 0x1p-24; }

TEST_P(LayerNormTest, ForwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const Forward result = run_forward(GetParam(), shape);
    const std::vector<double> x = decoded(result.x.view()), y = decoded(result.y.view());
    double largest = 0;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const auto first = static_cast<std::size_t>(row * shape.cols);
      const auto cols = static_cast<std::size_t>(shape.cols);
      double mean = 0, size = 0, variance = 0;
      for (std::size_t i = first; i < first + cols; ++i) {
        mean += x[i] / static_cast<double>(cols);
        size = std::max(size, std::fabs(x[i]));
      }
      for (std::size_t i = first; i < first + cols; ++i)
        variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(cols);
      const double rstd = 1 / std::sqrt(variance + double{kEps});
      const double error = fp32_error(shape);
      ASSERT_NEAR(double{result.mean[static_cast<std::size_t>(row)]}, mean, error * size);
      // A mean that is off by d adds d^2 to the variance.
      ASSERT_NEAR(double{result.rstd[static_cast<std::size_t>(row)]} / rstd, 1,
                  error + std::pow(error * size * rstd, 2));
      for (std::size_t i = first; i < first + cols; ++i) {
        const double exact = (x[i] - mean) * rstd;
        ASSERT_LE(std::fabs(y[i] - exact),
                  half_step(Format::kBf16, exact, 1) * 1.01 + (std::fabs(exact) + 2 * size * rstd) * error);
        largest = std::max(largest, std::fabs(y[i]));
      }
    }
    EXPECT_EQ(double{result.amax}, largest);
  }
}

TEST_P(LayerNormTest, BackwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const Forward forward = run_forward(GetParam(), shape);
    const OwnedMatrix dy_matrix =
        make_matrix(normal_values(shape.rows * shape.cols, 3, 0.5), kBf16, shape.rows, shape.cols);
    OwnedMatrix dx_matrix(kBf16, shape.rows, shape.cols);
    cpu_kernels().layer_norm_backward({.x = forward.x.view(),
                                       .mean = forward.mean.data(),
                                       .rstd = forward.rstd.data(),
                                       .dy = dy_matrix.view(),
                                       .dx = dx_matrix.view()},
                                      {});
    const std::vector<double> x = decoded(forward.x.view()), dy = decoded(dy_matrix.view()),
                              dx = decoded(dx_matrix.view());
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const auto first = static_cast<std::size_t>(row * shape.cols);
      const auto cols = static_cast<std::size_t>(shape.cols);
      const double rstd = forward.rstd[static_cast<std::size_t>(row)],
                   x_mean = forward.mean[static_cast<std::size_t>(row)];
      double mean = 0, slope = 0, mean_size = 0, slope_size = 0, x_size = 0;
      for (std::size_t i = first; i < first + cols; ++i) {
        const double normalized = (x[i] - x_mean) * rstd;
        mean += dy[i] / static_cast<double>(cols);
        slope += dy[i] * normalized / static_cast<double>(cols);
        mean_size += std::fabs(dy[i]) / static_cast<double>(cols);
        slope_size += std::fabs(dy[i] * normalized) / static_cast<double>(cols);
        x_size = std::max(x_size, (std::fabs(x[i]) + std::fabs(x_mean)) * rstd);
      }
      for (std::size_t i = first; i < first + cols; ++i) {
        const double normalized = (x[i] - x_mean) * rstd;
        const double exact = (dy[i] - mean - normalized * slope) * rstd;
        const double terms = (std::fabs(dy[i]) + mean_size + x_size * (slope_size + mean_size)) * rstd;
        ASSERT_LE(std::fabs(dx[i] - exact),
                  half_step(Format::kBf16, exact, 1) * 1.01 + fp32_error(shape) * terms);
      }
    }
  }
}

TEST(LayerNormEdgeTest, ConstantRowsGiveZerosAndNanStaysInItsRow) {
  std::vector<float> values(3 * 16, 0.7f);
  values[20] = std::numeric_limits<float>::quiet_NaN();
  std::fill(values.begin() + 32, values.end(), 0.0f);
  const OwnedMatrix x = make_matrix(values, kBf16, 3, 16);
  OwnedMatrix y(kBf16, 3, 16), wrong(kBf16, 3, 8);
  std::vector<float> mean(3), rstd(3);
  float amax = 0;
  const auto run = [&](const Matrix& out) {
    cpu_kernels().layer_norm_forward(
        {.x = x.view(), .eps = kEps, .y = out, .mean = mean.data(), .rstd = rstd.data(), .amax_out = &amax},
        {});
  };
  run(y.view());
  const std::vector<double> out = decoded(y.view());
  for (std::size_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(out[i]), i >= 16 && i < 32) << i;
  for (std::size_t i = 32; i < 48; ++i) EXPECT_EQ(out[i], 0.0);
  EXPECT_TRUE(std::isnan(amax));
  EXPECT_THROW(run(wrong.view()), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
