#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::test {
namespace {

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {17, 16}, {129, 17}, {4, 688}, {1000, 3}, {2, 5120}, {1, 13824}};

// Roundings of a handful of FP32 operations, one of them an exponential.
constexpr double kFp32Error = 16 * 0x1p-24;

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) {
  const double sig = 1 / (1 + std::exp(-x));
  return sig + x * sig * (1 - sig);
}

class SwigluTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, SwigluTest,
                         testing::Values(kFp32, kBf16, kE4M3Group16, kE4M3Group20, kE4M3Tensor));

TEST_P(SwigluTest, ForwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const std::int64_t count = shape.rows * shape.cols;
    const OwnedMatrix gate = make_matrix(normal_values(count, 1, 3), GetParam(), shape.rows, shape.cols);
    const OwnedMatrix up = make_matrix(normal_values(count, 2), kE4M3Group16, shape.rows, shape.cols);
    OwnedMatrix product(kBf16, shape.rows, shape.cols), activation(GetParam(), shape.rows, shape.cols);
    float amax = 0;
    cpu_kernels().swiglu_forward({.gate = gate.view(),
                                  .up = up.view(),
                                  .product = product.view(),
                                  .activation = activation.view(),
                                  .amax_out = &amax},
                                 {});
    const std::vector<double> g = decoded(gate.view()), u = decoded(up.view()), out = decoded(product.view()),
                              kept = decoded(activation.view());
    double largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double exact = silu(g[i]) * u[i];
      ASSERT_LE(std::fabs(out[i] - exact),
                half_step(Format::kBf16, exact, 1) * 1.01 + std::fabs(exact) * kFp32Error + 0x1p-140);
      const auto row = static_cast<std::int64_t>(i) / shape.cols,
                 col = static_cast<std::int64_t>(i) % shape.cols;
      const double scale = scale_of(activation.view(), row, col);
      const double step = std::max(half_step(GetParam().format, silu(g[i]), scale),
                                   GetParam().scaling == Scaling::kNone ? 0 : std::fabs(silu(g[i])) * 0x1p-8);
      ASSERT_LE(std::fabs(kept[i] - silu(g[i])), step * 1.01 + std::fabs(silu(g[i])) * kFp32Error);
      largest = std::max(largest, std::fabs(out[i]));
    }
    EXPECT_EQ(double{amax}, largest);
  }
}

TEST_P(SwigluTest, BackwardMatchesFp64) {
  for (const Shape& shape : kShapes) {
    const std::int64_t count = shape.rows * shape.cols;
    const OwnedMatrix gate = make_matrix(normal_values(count, 1, 3), GetParam(), shape.rows, shape.cols);
    const OwnedMatrix up = make_matrix(normal_values(count, 2), GetParam(), shape.rows, shape.cols);
    const OwnedMatrix dproduct = make_matrix(normal_values(count, 3, 0.1), kBf16, shape.rows, shape.cols);
    OwnedMatrix dgate(kBf16, shape.rows, shape.cols), dup(kBf16, shape.rows, shape.cols);
    float dgate_amax = 0, dup_amax = 0;
    cpu_kernels().swiglu_backward({.gate = gate.view(),
                                   .up = up.view(),
                                   .dproduct = dproduct.view(),
                                   .dgate = dgate.view(),
                                   .dup = dup.view(),
                                   .dgate_amax_out = &dgate_amax,
                                   .dup_amax_out = &dup_amax},
                                  {});
    const std::vector<double> g = decoded(gate.view()), u = decoded(up.view()), d = decoded(dproduct.view()),
                              dg = decoded(dgate.view()), du = decoded(dup.view());
    double dgate_largest = 0, dup_largest = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double exact_gate = d[i] * u[i] * silu_slope(g[i]), exact_up = d[i] * silu(g[i]);
      // The slope passes through zero as a sum of terms of up to 1 + |x|.
      const double slope_error = std::fabs(d[i] * u[i]) * (1 + std::fabs(g[i])) * kFp32Error;
      ASSERT_LE(std::fabs(dg[i] - exact_gate), half_step(Format::kBf16, exact_gate, 1) * 1.01 + slope_error);
      ASSERT_LE(std::fabs(du[i] - exact_up),
                half_step(Format::kBf16, exact_up, 1) * 1.01 + std::fabs(exact_up) * kFp32Error);
      dgate_largest = std::max(dgate_largest, std::fabs(dg[i]));
      dup_largest = std::max(dup_largest, std::fabs(du[i]));
    }
    EXPECT_EQ(double{dgate_amax}, dgate_largest);
    EXPECT_EQ(double{dup_amax}, dup_largest);
  }
}

// A saved silu(gate) is what the gradient of `up` reads; the gate's gradient stays as it is.
TEST(SwigluSavedTest, BackwardReadsTheSavedActivation) {
  const OwnedMatrix gate = make_matrix(normal_values(8 * 48, 1), kBf16, 8, 48);
  const OwnedMatrix up = make_matrix(normal_values(8 * 48, 2), kBf16, 8, 48);
  const OwnedMatrix dproduct = make_matrix(normal_values(8 * 48, 3), kBf16, 8, 48);
  const OwnedMatrix saved = make_matrix(normal_values(8 * 48, 4), kE4M3Group16, 8, 48);
  OwnedMatrix dgate(kBf16, 8, 48), dup(kBf16, 8, 48), plain_dgate(kBf16, 8, 48), plain_dup(kBf16, 8, 48);
  SwigluBackwardArgs args{.gate = gate.view(), .up = up.view(), .dproduct = dproduct.view()};
  args.dgate = plain_dgate.view();
  args.dup = plain_dup.view();
  cpu_kernels().swiglu_backward(args, {});
  args.activation = saved.view();
  args.dgate = dgate.view();
  args.dup = dup.view();
  cpu_kernels().swiglu_backward(args, {});
  EXPECT_EQ(dgate.data(), plain_dgate.data());
  const std::vector<double> d = decoded(dproduct.view()), a = decoded(saved.view()),
                            out = decoded(dup.view());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_LE(std::fabs(out[i] - d[i] * a[i]), half_step(Format::kBf16, d[i] * a[i], 1) * 1.01);
  }
}

// The reference's product: of what was stored of silu(gate), as its definition says.
TEST(SwigluSavedTest, ForwardCanReadTheStoredActivation) {
  for (const TensorFormat& format : {kE4M3Group16, kE4M3Tensor, kBf16}) {
    const OwnedMatrix gate = make_matrix(normal_values(8 * 48, 1), kE4M3Group16, 8, 48);
    const OwnedMatrix up = make_matrix(normal_values(8 * 48, 2), kE4M3Group16, 8, 48);
    OwnedMatrix product(kBf16, 8, 48), kept(format, 8, 48);
    SwigluForwardArgs args{.gate = gate.view(), .up = up.view(), .product = product.view()};
    args.product_reads_activation = true;
    EXPECT_THROW(cpu_kernels().swiglu_forward(args, {}), std::logic_error);
    args.activation = kept.view();
    cpu_kernels().swiglu_forward(args, {});
    const std::vector<double> a = decoded(kept.view()), u = decoded(up.view()), out = decoded(product.view());
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], double{round_bf16(static_cast<float>(a[i]) * static_cast<float>(u[i]))});
  }
}

// COAT.md 1.5: d silu = d product * up in BF16.
TEST(SwigluSavedTest, BackwardCanRoundTheGradientOfTheActivation) {
  const OwnedMatrix gate = make_matrix(normal_values(8 * 48, 1), kE4M3Group16, 8, 48);
  const OwnedMatrix up = make_matrix(normal_values(8 * 48, 2), kE4M3Group16, 8, 48);
  const OwnedMatrix dproduct = make_matrix(normal_values(8 * 48, 3), kBf16, 8, 48);
  OwnedMatrix dgate(kBf16, 8, 48), dup(kBf16, 8, 48);
  cpu_kernels().swiglu_backward({.gate = gate.view(),
                                 .up = up.view(),
                                 .dproduct = dproduct.view(),
                                 .dgate = dgate.view(),
                                 .dup = dup.view(),
                                 .round_dsilu = true},
                                {});
  const std::vector<double> g = decoded(gate.view()), u = decoded(up.view()), d = decoded(dproduct.view()),
                            out = decoded(dgate.view());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double dsilu = round_bf16(static_cast<float>(d[i]) * static_cast<float>(u[i]));
    const double exact = dsilu * silu_slope(g[i]);
    const double slope_error = std::fabs(dsilu) * (1 + std::fabs(g[i])) * kFp32Error;
    ASSERT_LE(std::fabs(out[i] - exact), half_step(Format::kBf16, exact, 1) * 1.01 + slope_error);
  }
}

TEST(SwigluEdgeTest, LargeGatesZerosAndNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const OwnedMatrix gate = make_matrix({0, 200, -200, nan, 1, 1}, kFp32, 1, 6);
  const OwnedMatrix up = make_matrix({1, 1, 1, 1, nan, 0}, kFp32, 1, 6);
  OwnedMatrix product(kBf16, 1, 6);
  cpu_kernels().swiglu_forward({.gate = gate.view(), .up = up.view(), .product = product.view()}, {});
  const std::vector<double> out = decoded(product.view());
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 200);
  EXPECT_EQ(out[2], 0);
  EXPECT_TRUE(std::isnan(out[3]) && std::isnan(out[4]));
  EXPECT_EQ(out[5], 0);
  OwnedMatrix none(kBf16, 0, 6), wrong(kBf16, 1, 5);
  cpu_kernels().swiglu_forward({.gate = none.view(), .up = none.view(), .product = none.view()}, {});
  EXPECT_THROW(
      cpu_kernels().swiglu_forward({.gate = gate.view(), .up = up.view(), .product = wrong.view()}, {}),
      std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
