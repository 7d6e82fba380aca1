#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::test {
namespace {

struct Size {
  std::int64_t m, n, k;
};

OwnedMatrix operand(const TensorFormat& format, Layout layout, std::int64_t outer, std::int64_t k,
                    std::uint32_t seed, double deviation = 1.0) {
  const auto values = normal_values(outer * k, seed, deviation);
  return layout == Layout::kKMajor ? make_matrix(values, format, outer, k)
                                   : make_matrix(values, format, k, outer);
}

// a . b^T in FP64, and the same of the magnitudes, which bounds the error of any order of summation.
struct Reference {
  std::vector<double> product, magnitude;
};

Reference reference(const OwnedMatrix& a, Layout a_layout, const OwnedMatrix& b, Layout b_layout,
                    const Size& size) {
  const std::vector<double> left = decoded(a.view()), right = decoded(b.view());
  const auto at = [](const std::vector<double>& values, Layout layout, std::int64_t outer, std::int64_t k,
                     const std::int64_t outers, const std::int64_t ks) {
    return values[static_cast<std::size_t>(layout == Layout::kKMajor ? outer * ks + k : k * outers + outer)];
  };
  Reference result;
  for (std::int64_t i = 0; i < size.m; ++i) {
    for (std::int64_t j = 0; j < size.n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < size.k; ++k) {
        const double term =
            at(left, a_layout, i, k, size.m, size.k) * at(right, b_layout, j, k, size.n, size.k);
        sum += term;
        magnitude += std::fabs(term);
      }
      result.product.push_back(sum);
      result.magnitude.push_back(magnitude);
    }
  }
  return result;
}

// The error of FP32 accumulation over k terms, then half a step of the output's format.
void expect_close(const OwnedMatrix& out, const Reference& expected, const Size& size) {
  const std::vector<double> values = decoded(out.view());
  const ConstMatrix view = out.view();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / size.n, col = static_cast<std::int64_t>(i) % size.n;
    const double scale = scale_of(view, row, col);
    const double accumulation = static_cast<double>(size.k + 8) * 0x1p-24 * expected.magnitude[i];
    const double rounding =
        view.format.format == Format::kFp32
            ? 0
            : std::max(half_step(view.format.format, expected.product[i], scale),
                       view.format.scaling == Scaling::kNone ? 0.0 : std::fabs(expected.product[i]) * 0x1p-8);
    ASSERT_LE(std::fabs(values[i] - expected.product[i]), 1.01 * (accumulation + rounding))
        << size.m << "x" << size.n << "x" << size.k << " at [" << row << ", " << col << "]";
  }
}

using Case = std::tuple<TensorFormat, TensorFormat, Layout, Layout, TensorFormat>;
class GemmTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(FormatsAndLayouts, GemmTest,
                         testing::Combine(testing::Values(kFp32, kBf16, kE4M3Tensor, kE5M2Tensor,
                                                          kE4M3Group16),
                                          testing::Values(kFp32, kBf16, kE4M3Tensor, kE4M3Group16),
                                          testing::Values(Layout::kKMajor, Layout::kMnMajor),
                                          testing::Values(Layout::kKMajor, Layout::kMnMajor),
                                          testing::Values(kFp32, kBf16, kE4M3Group16)));

TEST_P(GemmTest, MatchesFp64) {
  const auto& [a_format, b_format, a_layout, b_layout, out_format] = GetParam();
  for (const Size& size :
       {Size{1, 1, 1}, Size{17, 33, 19}, Size{129, 40, 7}, Size{131, 300, 9}, Size{3, 5, 1000}}) {
    const OwnedMatrix a = operand(a_format, a_layout, size.m, size.k, 1);
    const OwnedMatrix b = operand(b_format, b_layout, size.n, size.k, 2, 0.05);
    OwnedMatrix out(out_format, size.m, size.n);
    cpu_kernels().gemm(
        {.a = a.view(), .b = b.view(), .a_layout = a_layout, .b_layout = b_layout, .out = out.view()}, {});
    expect_close(out, reference(a, a_layout, b, b_layout, size), size);
  }
}

// Exact products of several significant digits more than BF16 has: rounded by themselves, then added, and
// where the output is BF16 rounded again.
TEST(GemmExactTest, AProductCanBeRoundedBeforeItIsAdded) {
  const Size size{150, 270, 96};
  const OwnedMatrix a = operand(kE4M3Tensor, Layout::kKMajor, size.m, size.k, 1);
  const OwnedMatrix b = operand(kE4M3Tensor, Layout::kKMajor, size.n, size.k, 2);
  OwnedMatrix product(kFp32, size.m, size.n), fp32(kFp32, size.m, size.n), bf16(kBf16, size.m, size.n),
      grouped(kE4M3Group16, size.m, size.n);
  GemmArgs args{.a = a.view(), .b = b.view(), .out = product.view()};
  cpu_kernels().gemm(args, {});
  args.round_product = true;
  for (OwnedMatrix* out : {&fp32, &bf16}) {
    args.out = out->view();
    args.accumulate = false;
    cpu_kernels().gemm(args, {});
    args.accumulate = true;
    cpu_kernels().gemm(args, {});
    cpu_kernels().gemm(args, {});
    const std::vector<double> once = decoded(product.view()), sums = decoded(out->view());
    for (std::size_t i = 0; i < once.size(); ++i) {
      const float term = round_bf16(static_cast<float>(once[i]));
      const bool rounds = out == &bf16;
      const float two = term + term;
      const float three = (rounds ? round_bf16(two) : two) + term;
      ASSERT_EQ(sums[i], double{rounds ? round_bf16(three) : three});
    }
  }
  args.out = grouped.view();
  args.accumulate = false;
  EXPECT_THROW(cpu_kernels().gemm(args, {}), std::logic_error);
}

// Small integers in FP8 with a scale that is a power of two: every sum is exact in FP32.
TEST(GemmExactTest, IntegersGiveTheExactProduct) {
  const Size size{150, 270, 96};
  std::vector<float> left, right;
  for (std::int64_t i = 0; i < size.m * size.k; ++i) left.push_back(static_cast<float>(i * 7 % 15 - 7));
  for (std::int64_t i = 0; i < size.n * size.k; ++i) right.push_back(static_cast<float>(i * 5 % 15 - 7));
  for (const Layout a_layout : {Layout::kKMajor, Layout::kMnMajor}) {
    for (const Layout b_layout : {Layout::kKMajor, Layout::kMnMajor}) {
      const bool a_k = a_layout == Layout::kKMajor, b_k = b_layout == Layout::kKMajor;
      const OwnedMatrix a = make_matrix(left, kE4M3Tensor, a_k ? size.m : size.k, a_k ? size.k : size.m);
      const OwnedMatrix b = make_matrix(right, kE4M3Tensor, b_k ? size.n : size.k, b_k ? size.k : size.n);
      OwnedMatrix out(kFp32, size.m, size.n);
      const GemmArgs args{
          .a = a.view(), .b = b.view(), .a_layout = a_layout, .b_layout = b_layout, .out = out.view()};
      cpu_kernels().gemm(args, {});
      EXPECT_EQ(decoded(out.view()), reference(a, a_layout, b, b_layout, size).product);
      // And once more on top.
      GemmArgs again = args;
      again.accumulate = true;
      cpu_kernels().gemm(again, {});
      std::vector<double> twice = reference(a, a_layout, b, b_layout, size).product;
      for (double& value : twice) value *= 2;
      EXPECT_EQ(decoded(out.view()), twice);
    }
  }
}

TEST(GemmAccumulateTest, Bf16OutputsAddAndRoundOnce) {
  const Size size{40, 300, 24};
  const OwnedMatrix a = operand(kBf16, Layout::kKMajor, size.m, size.k, 3);
  const OwnedMatrix b = operand(kBf16, Layout::kKMajor, size.n, size.k, 4);
  OwnedMatrix out = make_matrix(normal_values(size.m * size.n, 5), kBf16, size.m, size.n);
  Reference expected = reference(a, Layout::kKMajor, b, Layout::kKMajor, size);
  const std::vector<double> before = decoded(out.view());
  for (std::size_t i = 0; i < before.size(); ++i) {
    expected.product[i] += before[i];
    expected.magnitude[i] += std::fabs(before[i]);
  }
  cpu_kernels().gemm({.a = a.view(), .b = b.view(), .out = out.view(), .accumulate = true}, {});
  expect_close(out, expected, size);
}

// COAT.md 5.5 fact 26: codes of the FP32 product, not of its BF16 rounding.
TEST(GemmEpilogueTest, QuantizesFromTheAccumulator) {
  const Size size{64, 96, 48};
  const OwnedMatrix a = operand(kE4M3Tensor, Layout::kKMajor, size.m, size.k, 6);
  const OwnedMatrix b = operand(kE4M3Tensor, Layout::kKMajor, size.n, size.k, 7);
  OwnedMatrix direct(kE4M3Group16, size.m, size.n), full(kFp32, size.m, size.n),
      staged(kE4M3Group16, size.m, size.n);
  cpu_kernels().gemm({.a = a.view(), .b = b.view(), .out = full.view()}, {});
  cpu_kernels().quantize({.in = full.view(), .out = staged.view()}, {});
  cpu_kernels().gemm({.a = a.view(), .b = b.view(), .out = direct.view()}, {});
  EXPECT_EQ(direct.data(), staged.data());
  EXPECT_EQ(direct.scale(), staged.scale());
  OwnedMatrix rounded(kBf16, size.m, size.n), detour(kE4M3Group16, size.m, size.n);
  cpu_kernels().gemm({.a = a.view(), .b = b.view(), .out = rounded.view()}, {});
  cpu_kernels().quantize({.in = rounded.view(), .out = detour.view()}, {});
  EXPECT_NE(direct.data(), detour.data());
}

TEST(GemmEdgeTest, NothingToSumIsZeroAndNanSpreads) {
  OwnedMatrix a(kFp32, 3, 0), b(kFp32, 4, 0), out(kFp32, 3, 4);
  cpu_kernels().gemm({.a = a.view(), .b = b.view(), .out = out.view()}, {});
  EXPECT_EQ(decoded(out.view()), std::vector<double>(12, 0.0));
  std::vector<float> values = normal_values(3 * 8, 8);
  values[9] = std::numeric_limits<float>::quiet_NaN();
  const OwnedMatrix bad = make_matrix(values, kBf16, 3, 8), fine = operand(kBf16, Layout::kKMajor, 4, 8, 9);
  cpu_kernels().gemm({.a = bad.view(), .b = fine.view(), .out = out.view()}, {});
  const std::vector<double> result = decoded(out.view());
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(result[i]), i / 4 == 1) << i;
}

TEST(GemmEdgeTest, RefusesSizesAndFormatsThatDoNotFit) {
  OwnedMatrix a(kFp32, 3, 8), b(kFp32, 4, 7), b8(kFp32, 4, 8), out(kFp32, 3, 4), wrong(kFp32, 4, 3);
  OwnedMatrix fp8(kE4M3Group16, 3, 4), whole(kE4M3Tensor, 3, 4);
  const auto gemm = [](GemmArgs args) { cpu_kernels().gemm(args, {}); };
  EXPECT_THROW(gemm({.a = a.view(), .b = b.view(), .out = out.view()}), std::logic_error);
  EXPECT_THROW(gemm({.a = a.view(), .b = b8.view(), .out = wrong.view()}), std::logic_error);
  EXPECT_THROW(gemm({.a = a.view(), .b = b8.view(), .out = whole.view()}), std::logic_error);
  EXPECT_THROW(gemm({.a = a.view(), .b = b8.view(), .out = fp8.view(), .accumulate = true}),
               std::logic_error);
}

}  // namespace
}  // namespace coat::kernels::test
