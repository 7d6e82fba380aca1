#include <algorithm>
#include <cmath>

#include "tests/gpu/paired.h"

namespace coat::gpu_test {
namespace {

using kernels::GemmArgs;
using kernels::Layout;
using GemmTest = GpuTest;

struct Operands {
  TensorFormat a, b;
  Layout a_layout, b_layout;
};

std::string describe_operands(const Operands& o) {
  const auto side = [](const TensorFormat& format, Layout layout) {
    return describe(format) + (layout == Layout::kKMajor ? " [outer, K]" : " [K, outer]");
  };
  return side(o.a, o.a_layout) + " by " + side(o.b, o.b_layout);
}

// What the recipes multiply, and what must work besides: mixed formats, groups, FP32.
const std::vector<Operands> kOperands = {
    {kBf16, kBf16, Layout::kKMajor, Layout::kKMajor},
    {kBf16, kBf16, Layout::kKMajor, Layout::kMnMajor},
    {kBf16, kBf16, Layout::kMnMajor, Layout::kMnMajor},
    {kBf16, kBf16, Layout::kMnMajor, Layout::kKMajor},
    {kE4M3Tensor, kE4M3Tensor, Layout::kKMajor, Layout::kKMajor},
    {kE5M2Tensor, kE4M3Tensor, Layout::kKMajor, Layout::kKMajor},
    {kE4M3Tensor, kE5M2Tensor, Layout::kKMajor, Layout::kKMajor},
    {kE5M2Tensor, kE5M2Tensor, Layout::kKMajor, Layout::kKMajor},
    {kE4M3Tensor, kE4M3Tensor, Layout::kMnMajor, Layout::kKMajor},
    {kFp32, kFp32, Layout::kMnMajor, Layout::kMnMajor},
    {kE4M3Group16, kBf16, Layout::kKMajor, Layout::kKMajor},
    {kReferenceE5M2, kReferenceE4M3, Layout::kKMajor, Layout::kKMajor},
    {kE4M3Group16, kE4M3Block128, Layout::kKMajor, Layout::kKMajor},
    {kE4M3Row, kE4M3Tensor, Layout::kKMajor, Layout::kMnMajor},
};

struct Size {
  std::int64_t m, n, k;
};
const std::vector<Size> kSizes = {{64, 128, 256},  {1, 256, 256},    {17, 688, 256},
                                  {129, 256, 688}, {1000, 272, 129}, {33, 77, 1000},
                                  {256, 250, 17},  {3, 1, 5},        {1000, 4096, 512}};

PairedMatrix operand(const TensorFormat& format, Layout layout, std::int64_t outer, std::int64_t summed,
                     const std::vector<float>& contents) {
  return layout == Layout::kKMajor ? PairedMatrix(format, outer, summed, contents)
                                   : PairedMatrix(format, summed, outer, contents);
}

// Codes are integers in [-2, 2] and scales are 1/8, so that FP8 tensor cores and FP32 hold every sum exactly
// and every order of adding gives the same.
class ExactCase {
 public:
  ExactCase(const Operands& operands, const Size& size)
      : a_(operand(operands.a, operands.a_layout, size.m, size.k, integers(size.m * size.k, 2, 1))),
        b_(operand(operands.b, operands.b_layout, size.n, size.k, integers(size.n * size.k, 2, 2))) {
    set_exact(a_, 3);
    set_exact(b_, 4);
  }
  PairedMatrix& a() { return a_; }
  PairedMatrix& b() { return b_; }

 private:
  static void set_exact(PairedMatrix& matrix, std::uint64_t seed) {
    if (bytes_of(matrix.format().format) != 1) return;
    const Format format = matrix.format().format;
    const std::vector<float> codes = integers(matrix.data().count(), 2, seed);
    const kernels::Kernels& cpu = kernels::cpu_kernels();
    cpu.quantize({{codes.data(), nullptr, kFp32, matrix.rows(), matrix.cols()},
                  {matrix.data().host(),
                   nullptr,
                   {format, Scaling::kNone, 0, ScaleFormat::kFp32},
                   matrix.rows(),
                   matrix.cols()},
                  {},
                  nullptr},
                 {});
    const bool wide = matrix.format().scale_format == ScaleFormat::kFp32;
    const TensorFormat scale_format{wide ? Format::kFp32 : Format::kBf16, Scaling::kNone};
    const std::int64_t scales = matrix.scale().count() / bytes_of(matrix.format().scale_format);
    const std::vector<float> eighths(static_cast<std::size_t>(scales), 0.125f);
    cpu.quantize({{eighths.data(), nullptr, kFp32, 1, scales},
                  {matrix.scale().host(), nullptr, scale_format, 1, scales},
                  {},
                  nullptr},
                 {});
    matrix.data().upload();
    matrix.scale().upload();
  }

  PairedMatrix a_, b_;
};

TEST_F(GemmTest, IntegersGiveTheTwinsBitsInEveryFormatLayoutAndSize) {
  for (const Operands& operands : kOperands) {
    for (const Size& size : kSizes) {
      ExactCase exact(operands, size);
      for (const TensorFormat& format : {kFp32, kBf16, kE4M3Group16, kReferenceGroup16}) {
        for (const bool accumulate : {false, true}) {
          if (accumulate && bytes_of(format.format) == 1) continue;
          SCOPED_TRACE(describe_operands(operands) + " into " + describe(format) + ", m n k " +
                       std::to_string(size.m) + " " + std::to_string(size.n) + " " + std::to_string(size.k) +
                       (accumulate ? ", accumulating" : ""));
          PairedMatrix out(format, size.m, size.n, integers(size.m * size.n, 50, 5));
          cpu().gemm({exact.a().host(), exact.b().host(), operands.a_layout, operands.b_layout, out.host(),
                      accumulate},
                     {});
          cuda().gemm({exact.a().device(), exact.b().device(), operands.a_layout, operands.b_layout,
                       out.device(), accumulate},
                      {});
          EXPECT_TRUE(same_bits(out));
        }
      }
    }
  }
}

// Exact products of more digits than BF16 has, so that their rounding shows.
TEST_F(GemmTest, RoundedProductsGiveTheTwinsBits) {
  for (const Operands& operands : kOperands) {
    for (const Size& size : kSizes) {
      ExactCase exact(operands, size);
      for (const TensorFormat& format : {kFp32, kBf16}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(describe_operands(operands) + " into " + describe(format) + ", m n k " +
                       std::to_string(size.m) + " " + std::to_string(size.n) + " " + std::to_string(size.k) +
                       (accumulate ? ", accumulating" : ""));
          PairedMatrix out(format, size.m, size.n, integers(size.m * size.n, 50, 5));
          kernels::GemmArgs args{exact.a().host(),
                                 exact.b().host(),
                                 operands.a_layout,
                                 operands.b_layout,
                                 out.host(),
                                 accumulate,
                                 true};
          cpu().gemm(args, {});
          args.a = exact.a().device();
          args.b = exact.b().device();
          args.out = out.device();
          cuda().gemm(args, {});
          EXPECT_TRUE(same_bits(out));
        }
      }
    }
  }
}

// How far the CUDA result may lie from the twin's; `sum` is sum |a| |b| of the element, `value` the larger of
// both results.
// - FP32 accumulation of K products on both sides: K errors of random sign, each below 2^-24 (rounded) or
// 2^-23 (cut off, on
//   tensor cores) of the sum; 8 sqrt(K) 2^-24 are more than four standard deviations of the latter.
// - FP8 tensor cores cut every addend of an instruction (32 products and the sum so far) 13 bits below the
// largest one. With
//   split accumulation at most 4 instructions pass before their sum is added in FP32, so 4 * 33 * 2^-13 of
//   the largest addend is lost, which is 2^-10 of the sum for data like these, where none of 128 products
//   exceeds 1/16 of their sum.
// - BF16 results are rounded on both sides, by up to 2^-8 of the value each.
double bound_of(const Operands& operands, const TensorFormat& out, std::int64_t k, double sum, double value) {
  const bool fp8 = bytes_of(operands.a.format) == 1 && bytes_of(operands.b.format) == 1;
  const double accumulation = 8 * std::sqrt(static_cast<double>(k)) * 0x1p-24 + (fp8 ? 0x1p-10 : 0.0);
  return accumulation * sum + (out.format == Format::kBf16 ? 0x1p-7 * value : 0.0);
}

std::vector<float> magnitudes(PairedMatrix& matrix) {
  std::vector<float> out = matrix.decoded_host();
  for (float& value : out) value = std::fabs(value);
  return out;
}

// sum over K of |a| |b|.
std::vector<float> sums_of_magnitudes(const kernels::Kernels& cpu, PairedMatrix& a, PairedMatrix& b,
                                      const Operands& operands, std::int64_t m, std::int64_t n) {
  std::vector<float> a_magnitudes = magnitudes(a), b_magnitudes = magnitudes(b);
  std::vector<float> out(static_cast<std::size_t>(m * n));
  cpu.gemm({{a_magnitudes.data(), nullptr, kFp32, a.rows(), a.cols()},
            {b_magnitudes.data(), nullptr, kFp32, b.rows(), b.cols()},
            operands.a_layout,
            operands.b_layout,
            {out.data(), nullptr, kFp32, m, n},
            false},
           {});
  return out;
}

TEST_F(GemmTest, RandomValuesStayWithinTheBoundOfTheAccumulation) {
  for (const Operands& operands : kOperands) {
    double worst = 0;
    for (const Size& size : {Size{17, 688, 256}, Size{129, 256, 688}, Size{1000, 256, 5120},
                             Size{129, 5120, 13824}, Size{33, 77, 1000}}) {
      PairedMatrix a =
          operand(operands.a, operands.a_layout, size.m, size.k, values(size.m * size.k, Fill::kSpread, 1));
      PairedMatrix b =
          operand(operands.b, operands.b_layout, size.n, size.k, values(size.n * size.k, Fill::kSpread, 2));
      const std::vector<float> sums = sums_of_magnitudes(cpu(), a, b, operands, size.m, size.n);
      for (const TensorFormat& format : {kFp32, kBf16}) {
        SCOPED_TRACE(describe_operands(operands) + " into " + describe(format) + ", m n k " +
                     std::to_string(size.m) + " " + std::to_string(size.n) + " " + std::to_string(size.k));
        PairedMatrix out(format, size.m, size.n);
        cpu().gemm({a.host(), b.host(), operands.a_layout, operands.b_layout, out.host(), false}, {});
        cuda().gemm({a.device(), b.device(), operands.a_layout, operands.b_layout, out.device(), false}, {});
        EXPECT_TRUE(out.guards_are_intact());
        const std::vector<float> expected = out.decoded_host(), got = out.decoded_device();
        std::size_t beyond = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double difference = std::fabs(static_cast<double>(expected[i]) - static_cast<double>(got[i]));
          const double sum = static_cast<double>(sums[i]);
          const double value = std::fmax(std::fabs(expected[i]), std::fabs(got[i]));
          const double bound = bound_of(operands, format, size.k, sum, value);
          beyond += difference <= bound ? 0 : 1;
          if (format == kFp32 && sum > 0) worst = std::max(worst, difference / sum);
        }
        EXPECT_EQ(beyond, 0u) << "elements beyond the bound, of " << got.size();
      }
    }
    std::printf("%-60s largest |cuda - cpu| / sum|a||b|: %.3g = 2^%.1f\n",
                describe_operands(operands).c_str(), worst, std::log2(worst));
  }
}

// The product is rounded to FP8 from its FP32 value. Both sides' values differ by the accumulation, so a code
// may differ by one step where a value lies at a rounding point, and a scale by one unit of BF16.
TEST_F(GemmTest, GroupQuantizedResultOfRandomValues) {
  const Operands operands{kE4M3Tensor, kE4M3Tensor, Layout::kKMajor, Layout::kKMajor};
  for (const Size& size : {Size{129, 13824, 512}, Size{1000, 688, 256}}) {
    PairedMatrix a =
        operand(operands.a, operands.a_layout, size.m, size.k, values(size.m * size.k, Fill::kSpread, 1));
    PairedMatrix b =
        operand(operands.b, operands.b_layout, size.n, size.k, values(size.n * size.k, Fill::kSpread, 2));
    const std::vector<float> sums = sums_of_magnitudes(cpu(), a, b, operands, size.m, size.n);
    PairedMatrix out(kE4M3Group16, size.m, size.n);
    cpu().gemm({a.host(), b.host(), operands.a_layout, operands.b_layout, out.host(), false}, {});
    cuda().gemm({a.device(), b.device(), operands.a_layout, operands.b_layout, out.device(), false}, {});
    const std::vector<float> expected = out.decoded_host(), got = out.decoded_device();
    std::size_t beyond = 0, different = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double value = std::fabs(static_cast<double>(expected[i])), sum = static_cast<double>(sums[i]);
      const double difference = std::fabs(static_cast<double>(expected[i]) - static_cast<double>(got[i]));
      different += difference > 0 ? 1 : 0;
      // One step of E4M3 is at most 1/8 of the value; the smallest one is 2^-9 of a scale, which is below sum
      // / 448.
      beyond += difference <= value / 8 + sum * (0x1p-10 + 0x1p-9 / 448) ? 0 : 1;
    }
    EXPECT_EQ(beyond, 0u);
    EXPECT_LT(different, got.size() / 20);
  }
}

// The kernel of our own, at and beside the edges of its tiles of 192 x 128 and stages of 128.
using GroupProductTest = GpuTest;

TEST_F(GroupProductTest, EdgesOfTilesGiveTheTwinsBits) {
  const Operands operands{kE4M3Tensor, kE4M3Tensor, Layout::kKMajor, Layout::kKMajor};
  for (const Size& size :
       {Size{1, 16, 16}, Size{63, 112, 128}, Size{192, 128, 112}, Size{193, 144, 256}, Size{191, 128, 640},
        Size{2500, 272, 144}, Size{100, 4096, 4096}, Size{385, 1040, 129}}) {
    ExactCase exact(operands, size);
    for (const TensorFormat& format : {kE4M3Group16, kReferenceGroup16}) {
      SCOPED_TRACE(describe(format) + ", m n k " + std::to_string(size.m) + " " + std::to_string(size.n) +
                   " " + std::to_string(size.k));
      PairedMatrix out(format, size.m, size.n);
      cpu().gemm({exact.a().host(), exact.b().host(), operands.a_layout, operands.b_layout, out.host()}, {});
      cuda().gemm(
          {exact.a().device(), exact.b().device(), operands.a_layout, operands.b_layout, out.device()}, {});
      EXPECT_TRUE(same_bits(out));
    }
  }
}

TEST_F(GemmTest, WideResultsAreStagedInPieces) {
  const Operands operands{kBf16, kBf16, Layout::kMnMajor, Layout::kMnMajor};
  const Size size{3000, 13824, 16};  // 166 MB of FP32: three pieces
  ExactCase exact(operands, size);
  PairedMatrix out(kE4M3Group16, size.m, size.n);
  cpu().gemm({exact.a().host(), exact.b().host(), operands.a_layout, operands.b_layout, out.host(), false},
             {});
  cuda().gemm(
      {exact.a().device(), exact.b().device(), operands.a_layout, operands.b_layout, out.device(), false},
      {});
  EXPECT_TRUE(same_bits(out));
}

TEST_F(GemmTest, EmptySums) {
  for (const TensorFormat& format : {kBf16, kE4M3Tensor}) {
    PairedMatrix a(format, 5, 0), b(format, 32, 0);
    for (const TensorFormat& out_format : {kFp32, kBf16, kE4M3Group16}) {
      PairedMatrix out(out_format, 5, 32, values(160, Fill::kSpread, 1));
      cpu().gemm({a.host(), b.host(), Layout::kKMajor, Layout::kKMajor, out.host(), false}, {});
      cuda().gemm({a.device(), b.device(), Layout::kKMajor, Layout::kKMajor, out.device(), false}, {});
      EXPECT_TRUE(same_bits(out)) << describe(format) << " into " << describe(out_format);
    }
  }
  PairedMatrix a(kBf16, 0, 16), b(kBf16, 8, 16, values(128, Fill::kSpread, 1)), out(kBf16, 0, 8);
  EXPECT_NO_THROW(
      cuda().gemm({a.device(), b.device(), Layout::kKMajor, Layout::kKMajor, out.device(), false}, {}));
}

TEST_F(GemmTest, MisalignedOperands) {
  for (const TensorFormat& format : {kBf16, kE4M3Tensor}) {
    PairedMatrix a(format, 17, 256, integers(17 * 256, 2, 1), 4),
        b(format, 32, 256, integers(32 * 256, 2, 2), 4);
    PairedMatrix out(kBf16, 17, 32, 4);
    cpu().gemm({a.host(), b.host(), Layout::kKMajor, Layout::kKMajor, out.host(), false}, {});
    cuda().gemm({a.device(), b.device(), Layout::kKMajor, Layout::kKMajor, out.device(), false}, {});
    const std::vector<float> expected = out.decoded_host(), got = out.decoded_device();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(expected[i], got[i], 0.01f * std::fabs(expected[i]) + 0.25f)
          << describe(format) << " " << i;
    }
    EXPECT_TRUE(out.guards_are_intact());
  }
}

TEST_F(GemmTest, TheSameCallGivesTheSameBits) {
  PairedMatrix a(kE4M3Tensor, 1000, 4096, values(1000 * 4096, Fill::kSpread, 1));
  PairedMatrix b(kE4M3Tensor, 512, 4096, values(512 * 4096, Fill::kSpread, 2));
  PairedMatrix first(kBf16, 1000, 512), second(kBf16, 1000, 512);
  for (PairedMatrix* out : {&first, &second}) {
    cuda().gemm({a.device(), b.device(), Layout::kKMajor, Layout::kKMajor, out->device(), false}, {});
  }
  EXPECT_EQ(first.data().from_device(), second.data().from_device());
}

TEST_F(GemmTest, WrongArgumentsAreRefused) {
  PairedMatrix a(kBf16, 4, 64, values(256, Fill::kSpread, 1)), b(kBf16, 8, 64, values(512, Fill::kSpread, 2));
  PairedMatrix short_b(kBf16, 8, 32, values(256, Fill::kSpread, 3)), out(kBf16, 4, 8), wrong(kBf16, 8, 4);
  PairedMatrix per_tensor(kE4M3Tensor, 4, 8), grouped(kE4M3Group16, 4, 8);
  const auto product = [&](PairedMatrix& right, PairedMatrix& result, bool accumulate) {
    cuda().gemm({a.device(), right.device(), Layout::kKMajor, Layout::kKMajor, result.device(), accumulate},
                {});
  };
  EXPECT_THROW(product(short_b, out, false), std::logic_error);
  EXPECT_THROW(product(b, wrong, false), std::logic_error);
  EXPECT_THROW(product(b, per_tensor, false), std::logic_error);
  EXPECT_THROW(product(b, grouped, true), std::logic_error);
}

}  // namespace
}  // namespace coat::gpu_test
