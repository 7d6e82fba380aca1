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

class RmsNormTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, RmsNormTest, testing::Values(kFp32, kBf16, kE4M3Group16, kE4M3Tensor));

struct Forward {
  OwnedMatrix x, y;
  std::vector<float> weight, rstd;
  float amax = 0;
};

Forward run_forward(const TensorFormat& format, const Shape& shape) {
  Forward result{make_matrix(normal_values(shape.rows * shape.cols, 1, 2.0), format, shape.rows, shape.cols),
                 OwnedMatrix(kBf16, shape.rows, shape.cols), normal_values(shape.cols, 2),
                 std::vector<float>(static_cast<std::size_t>(shape.rows))};
  cpu_kernels().rms_norm_forward({.x = result.x.view(),
                                  .weight = result.weight.data(),
                                  .eps = kEps,
                                  .y = result.y.view(),
                                  .rstd = result.rstd.data(),
                                  .amax_out = &result.amax},
                                 {});
  return result;
}

TEST_P(RmsNormTest, ForwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const Forward result = run_forward(GetParam(), shape);
    const std::vector<double> x = decoded(result.x.view()), y = decoded(result.y.view());
    double largest = 0;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      double squares = 0;
      for (std::int64_t col = 0; col < shape.cols; ++col) {
        squares += std::pow(x[static_cast<std::size_t>(row * shape.cols + col)], 2);
      }
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(shape.cols) + double{kEps});
      // Lanes of cols / 16 terms that are all positive, then a few roundings.
      const double fp32_error = (static_cast<double>(shape.cols) / 16 + 12) * 0x1p-24;
      ASSERT_NEAR(double{result.rstd[static_cast<std::size_t>(row)]} / rstd, 1, fp32_error);
      for (std::int64_t col = 0; col < shape.cols; ++col) {
        const auto i = static_cast<std::size_t>(row * shape.cols + col);
        const double exact = x[i] * rstd * double{result.weight[static_cast<std::size_t>(col)]};
        ASSERT_LE(std::fabs(y[i] - exact),
                  half_step(Format::kBf16, exact, 1) + std::fabs(exact) * fp32_error);
        largest = std::max(largest, std::fabs(y[i]));
      }
    }
    EXPECT_EQ(double{result.amax}, largest);
  }
}

TEST_P(RmsNormTest, BackwardMatchesFp64AndAddsToTheWeightGradient) {
  for (const Shape& shape : kShapes) {
    const Forward forward = run_forward(GetParam(), shape);
    const OwnedMatrix dy_matrix =
        make_matrix(normal_values(shape.rows * shape.cols, 3, 0.5), kBf16, shape.rows, shape.cols);
    OwnedMatrix dx_matrix(kBf16, shape.rows, shape.cols);
    std::vector<float> dweight(static_cast<std::size_t>(shape.cols), 0.25f);
    cpu_kernels().rms_norm_backward({.x = forward.x.view(),
                                     .weight = forward.weight.data(),
                                     .rstd = forward.rstd.data(),
                                     .dy = dy_matrix.view(),
                                     .dx = dx_matrix.view(),
                                     .dweight = dweight.data()},
                                    {});
    const std::vector<double> x = decoded(forward.x.view()), dy = decoded(dy_matrix.view()),
                              dx = decoded(dx_matrix.view());
    std::vector<double> sums(dweight.size(), 0.25), magnitudes(dweight.size(), 0.25);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const double rstd = forward.rstd[static_cast<std::size_t>(row)];
      double mean = 0, mean_magnitude = 0;
      for (std::int64_t col = 0; col < shape.cols; ++col) {
        const auto i = static_cast<std::size_t>(row * shape.cols + col);
        const double term = x[i] * rstd * double{forward.weight[static_cast<std::size_t>(col)]} * dy[i];
        mean += term / static_cast<double>(shape.cols);
        mean_magnitude += std::fabs(term) / static_cast<double>(shape.cols);
        sums[static_cast<std::size_t>(col)] += dy[i] * x[i] * rstd;
        magnitudes[static_cast<std::size_t>(col)] += std::fabs(dy[i] * x[i] * rstd);
      }
      for (std::int64_t col = 0; col < shape.cols; ++col) {
        const auto i = static_cast<std::size_t>(row * shape.cols + col);
        const double direct = double{forward.weight[static_cast<std::size_t>(col)]} * dy[i];
        const double exact = (direct - x[i] * rstd * mean) * rstd;
        const double terms = (std::fabs(direct) + std::fabs(x[i] * rstd) * mean_magnitude) * rstd;
        const double fp32_error = (static_cast<double>(shape.cols) / 16 + 12) * 0x1p-24 * terms;
        ASSERT_LE(std::fabs(dx[i] - exact), half_step(Format::kBf16, exact, 1) * 1.01 + fp32_error);
      }
    }
    for (std::size_t col = 0; col < sums.size(); ++col) {
      const double fp32_error = static_cast<double>(shape.rows + 8) * 0x1p-24 * magnitudes[col];
      ASSERT_NEAR(double{dweight[col]}, sums[col], fp32_error) << col;
    }
  }
}

TEST(RmsNormEdgeTest, ZerosGiveZerosAndNanStaysInItsRow) {
  std::vector<float> values(2 * 16);
  values[20] = std::numeric_limits<float>::quiet_NaN();
  const OwnedMatrix x = make_matrix(values, kBf16, 2, 16);
  OwnedMatrix y(kBf16, 2, 16);
  const std::vector<float> weight(16, 1.0f);
  std::vector<float> rstd(2);
  float amax = 0;
  cpu_kernels().rms_norm_forward({.x = x.view(),
                                  .weight = weight.data(),
                                  .eps = kEps,
                                  .y = y.view(),
                                  .rstd = rstd.data(),
                                  .amax_out = &amax},
                                 {});
  const std::vector<double> out = decoded(y.view());
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], 0.0);
  for (std::size_t i = 16; i < 32; ++i) EXPECT_TRUE(std::isnan(out[i]));
  EXPECT_TRUE(std::isnan(amax));
}

TEST(RmsNormEdgeTest, EmptyAndWrongShapes) {
  OwnedMatrix none(kBf16, 0, 16), y(kBf16, 0, 16), other(kBf16, 3, 16), fp32(kFp32, 0, 16);
  const std::vector<float> weight(16, 1.0f);
  std::vector<float> dweight(16, 0.5f);
  const auto forward = [&](const Matrix& out) {
    cpu_kernels().rms_norm_forward(
        {.x = none.view(), .weight = weight.data(), .eps = kEps, .y = out, .rstd = nullptr}, {});
  };
  forward(y.view());
  cpu_kernels().rms_norm_backward({.x = none.view(),
                                   .weight = weight.data(),
                                   .rstd = nullptr,
                                   .dy = none.view(),
                                   .dx = y.view(),
                                   .dweight = dweight.data()},
                                  {});
  EXPECT_EQ(dweight, std::vector<float>(16, 0.5f));
  EXPECT_THROW(forward(other.view()), std::logic_error);
  EXPECT_THROW(forward(fp32.view()), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
