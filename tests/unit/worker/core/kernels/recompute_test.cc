// What backward makes again is, bit for bit, what forward made and quantized.
#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"

namespace coat::kernels::test {
namespace {

constexpr TensorFormat kReferenceE4M3{Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kBf16,
                                      kReferenceTensorRule};

struct Shape {
  std::int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 5120}, {17, 48}, {129, 272}, {1000, 16}, {1, 13824}, {7, 77}, {2, 1}};

// The two-step path: row-major and transposed.
struct Codes {
  Codes(const TensorFormat& format, const Shape& shape)
      : rows(format, shape.rows, shape.cols), transposed(format, shape.cols, shape.rows) {}
  OwnedMatrix rows, transposed;
  RecomputedOutput output() { return {rows.view(), transposed.view()}; }
};

void expect_equal(const Codes& a, const Codes& b) {
  EXPECT_EQ(a.rows.data(), b.rows.data());
  EXPECT_EQ(a.rows.scale(), b.rows.scale());
  EXPECT_EQ(a.transposed.data(), b.transposed.data());
  EXPECT_EQ(a.transposed.scale(), b.transposed.scale());
}

class RecomputeTest : public testing::TestWithParam<TensorFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, RecomputeTest, testing::Values(kE4M3Tensor, kE5M2Tensor, kReferenceE4M3));

TEST_P(RecomputeTest, RmsNorm) {
  for (const TensorFormat& saved : {kE4M3Group16, kBf16, kE4M3Group20}) {
    for (const Shape& shape : kShapes) {
      const OwnedMatrix x =
          make_matrix(normal_values(shape.rows * shape.cols, 1, 2), saved, shape.rows, shape.cols);
      const std::vector<float> weight = normal_values(shape.cols, 2);
      std::vector<float> rstd(static_cast<std::size_t>(shape.rows));
      OwnedMatrix y(kBf16, shape.rows, shape.cols);
      float amax = 0;
      cpu_kernels().rms_norm_forward({.x = x.view(),
                                      .weight = weight.data(),
                                      .eps = 1e-5f,
                                      .y = y.view(),
                                      .rstd = rstd.data(),
                                      .amax_out = &amax},
                                     {});
      Codes expected(GetParam(), shape), made(GetParam(), shape);
      cpu_kernels().quantize({.in = y.view(),
                              .out = expected.rows.view(),
                              .out_transposed = expected.transposed.view(),
                              .amax = &amax},
                             {});
      cpu_kernels().rms_norm_recompute({.x = x.view(),
                                        .weight = weight.data(),
                                        .rstd = rstd.data(),
                                        .amax = &amax,
                                        .output = made.output()},
                                       {});
      expect_equal(made, expected);
    }
  }
}

TEST_P(RecomputeTest, Swiglu) {
  for (const TensorFormat& saved : {kE4M3Group16, kBf16, kE4M3Group20}) {
    for (const Shape& shape : kShapes) {
      const std::int64_t count = shape.rows * shape.cols;
      const OwnedMatrix gate = make_matrix(normal_values(count, 1, 3), saved, shape.rows, shape.cols);
      const OwnedMatrix up = make_matrix(normal_values(count, 2), saved, shape.rows, shape.cols);
      OwnedMatrix product(kBf16, shape.rows, shape.cols);
      float amax = 0;
      cpu_kernels().swiglu_forward(
          {.gate = gate.view(), .up = up.view(), .product = product.view(), .amax_out = &amax}, {});
      Codes expected(GetParam(), shape), made(GetParam(), shape);
      cpu_kernels().quantize({.in = product.view(),
                              .out = expected.rows.view(),
                              .out_transposed = expected.transposed.view(),
                              .amax = &amax},
                             {});
      cpu_kernels().swiglu_recompute(
          {.gate = gate.view(), .up = up.view(), .amax = &amax, .output = made.output()}, {});
      expect_equal(made, expected);
    }
  }
}

TEST(RecomputeEdgeTest, EachLayoutAloneAndWrongOutputs) {
  const OwnedMatrix gate = make_matrix(normal_values(17 * 48, 1), kE4M3Group16, 17, 48);
  const float amax = 3.0f;
  const auto run = [&](const RecomputedOutput& output) {
    cpu_kernels().swiglu_recompute({.gate = gate.view(), .up = gate.view(), .amax = &amax, .output = output},
                                   {});
  };
  Codes both(kE4M3Tensor, {17, 48}), alone(kE4M3Tensor, {17, 48});
  run(both.output());
  run({alone.rows.view(), {}});
  run({{}, alone.transposed.view()});
  expect_equal(alone, both);
  OwnedMatrix grouped(kE4M3Group16, 17, 48), wrong(kE4M3Tensor, 48, 17);
  const OwnedMatrix none(kE4M3Group16, 0, 48);
  cpu_kernels().swiglu_recompute({.gate = none.view(), .up = none.view(), .amax = &amax, .output = {}}, {});
  EXPECT_THROW(run({}), std::logic_error);
  EXPECT_THROW(run({grouped.view(), {}}), std::logic_error);
  EXPECT_THROW(run({wrong.view(), {}}), std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
