// LayerNorm, GELU, and what backward makes again: the twin's bits.
#include "tests/gpu/paired.h"

namespace coat::gpu_test {
namespace {

using LayerNormTest = GpuTest;
using GeluTest = GpuTest;
using RecomputeTest = GpuTest;

const std::vector<TensorFormat> kInputs = {kBf16, kFp32, kE4M3Group16, kE4M3Tensor};
constexpr Fill kFills[] = {Fill::kSpread, Fill::kZeros, Fill::kConstant, Fill::kTiny, Fill::kSpecial};

// Every shape with spread values, and one shape with every kind of them.
std::vector<std::pair<Shape, Fill>> cases() {
  std::vector<std::pair<Shape, Fill>> all;
  for (const Shape& shape : activation_shapes()) all.push_back({shape, Fill::kSpread});
  for (const Fill fill : kFills) all.push_back({{17, 688}, fill});
  return all;
}

std::string describe(const TensorFormat& format, const Shape& shape, Fill fill) {
  return gpu_test::describe(format) + ", " + gpu_test::describe(shape) + ", fill " +
         std::to_string(static_cast<int>(fill));
}

TEST_F(LayerNormTest, ForwardAndBackward) {
  for (const TensorFormat& format : kInputs) {
    for (const auto& [shape, fill] : cases()) {
      if (fill == Fill::kSpecial && format == kE4M3Tensor) continue;  // the scale itself is NaN
      SCOPED_TRACE(describe(format, shape, fill));
      PairedMatrix x(format, shape.rows, shape.cols, values(shape.rows * shape.cols, fill, 1));
      PairedMatrix dy(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 3));
      PairedMatrix y(kBf16, shape.rows, shape.cols), dx(kBf16, shape.rows, shape.cols);
      Paired<float> mean(shape.rows), rstd(shape.rows), amax(1);
      cpu().layer_norm_forward({x.host(), 1e-5f, y.host(), mean.host(), rstd.host(), amax.host()}, {});
      cuda().layer_norm_forward({x.device(), 1e-5f, y.device(), mean.device(), rstd.device(), amax.device()},
                                {});
      EXPECT_TRUE(same_bits(y));
      EXPECT_TRUE(same_bits(mean));
      EXPECT_TRUE(same_bits(rstd));
      EXPECT_TRUE(same_bits(amax));
      cpu().layer_norm_backward({x.host(), mean.host(), rstd.host(), dy.host(), dx.host()}, {});
      cuda().layer_norm_backward({x.device(), mean.device(), rstd.device(), dy.device(), dx.device()}, {});
      EXPECT_TRUE(same_bits(dx));
    }
  }
}

TEST_F(GeluTest, ForwardAndBackward) {
  for (const TensorFormat& format : kInputs) {
    for (const auto& [shape, fill] : cases()) {
      if (fill == Fill::kSpecial && format == kE4M3Tensor) continue;
      SCOPED_TRACE(describe(format, shape, fill));
      PairedMatrix x(format, shape.rows, shape.cols, values(shape.rows * shape.cols, fill, 1));
      PairedMatrix dy(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 3));
      PairedMatrix y(kBf16, shape.rows, shape.cols), dx(kBf16, shape.rows, shape.cols);
      Paired<float> amax(1), dx_amax(1);
      cpu().gelu_forward({x.host(), y.host(), amax.host()}, {});
      cuda().gelu_forward({x.device(), y.device(), amax.device()}, {});
      cpu().gelu_backward({x.host(), dy.host(), dx.host(), dx_amax.host()}, {});
      cuda().gelu_backward({x.device(), dy.device(), dx.device(), dx_amax.device()}, {});
      EXPECT_TRUE(same_bits(y));
      EXPECT_TRUE(same_bits(dx));
      EXPECT_TRUE(same_bits(amax));
      EXPECT_TRUE(same_bits(dx_amax));
    }
  }
}

TEST_F(GeluTest, TheWholeRangeOfTheExponential) {
  std::vector<float> range;
  for (int i = 0; i < 8192; ++i) range.push_back(-16.0f + static_cast<float>(i) * 0.00390625f);
  PairedMatrix x(kFp32, 8, 1024, range), y(kBf16, 8, 1024);
  cpu().gelu_forward({x.host(), y.host(), nullptr}, {});
  cuda().gelu_forward({x.device(), y.device(), nullptr}, {});
  EXPECT_TRUE(same_bits(y));
}

// Both layouts, and each alone.
struct MadeAgain {
  MadeAgain(const TensorFormat& format, const Shape& shape, int which)
      : rows(format, shape.rows, shape.cols), transposed(format, shape.cols, shape.rows), which_(which) {}
  kernels::RecomputedOutput host() { return output(rows.host(), transposed.host()); }
  kernels::RecomputedOutput device() { return output(rows.device(), transposed.device()); }
  void expect_same() {
    if (which_ != 1) {
      EXPECT_TRUE(same_bits(rows));
    }
    if (which_ != 0) {
      EXPECT_TRUE(same_bits(transposed));
    }
  }
  PairedMatrix rows, transposed;

 private:
  kernels::RecomputedOutput output(const Matrix& r, const Matrix& t) const {
    return {which_ != 1 ? r : Matrix{}, which_ != 0 ? t : Matrix{}};
  }
  int which_;
};

TEST_F(RecomputeTest, RmsNorm) {
  for (const TensorFormat& saved : {kE4M3Group16, kReferenceGroup16, kBf16}) {
    for (const TensorFormat& format : {kE4M3Tensor, kReferenceE4M3, kE5M2Tensor}) {
      for (const Shape& shape : activation_shapes()) {
        for (const int which : {0, 1, 2}) {
          SCOPED_TRACE(gpu_test::describe(saved) + " to " + describe(format, shape, Fill::kSpread));
          PairedMatrix x(saved, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
          Paired<float> weight(values(shape.cols, Fill::kSpread, 2)),
              rstd(values(shape.rows, Fill::kConstant, 4)), amax(std::vector<float>{5.5f});
          MadeAgain made(format, shape, which);
          cpu().rms_norm_recompute({x.host(), weight.host(), rstd.host(), amax.host(), made.host()}, {});
          cuda().rms_norm_recompute(
              {x.device(), weight.device(), rstd.device(), amax.device(), made.device()}, {});
          made.expect_same();
        }
      }
    }
  }
}

TEST_F(RecomputeTest, Swiglu) {
  for (const TensorFormat& saved : {kE4M3Group16, kReferenceGroup16, kBf16}) {
    for (const TensorFormat& format : {kE4M3Tensor, kReferenceE4M3, kE5M2Tensor}) {
      for (const auto& [shape, fill] : cases()) {
        for (const int which : {0, 1, 2}) {
          SCOPED_TRACE(gpu_test::describe(saved) + " to " + describe(format, shape, fill));
          PairedMatrix gate(saved, shape.rows, shape.cols, values(shape.rows * shape.cols, fill, 1));
          PairedMatrix up(saved, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 2));
          Paired<float> amax(std::vector<float>{7.25f});
          MadeAgain made(format, shape, which);
          cpu().swiglu_recompute({gate.host(), up.host(), amax.host(), made.host()}, {});
          cuda().swiglu_recompute({gate.device(), up.device(), amax.device(), made.device()}, {});
          made.expect_same();
        }
      }
    }
  }
}

// Against what forward made on the same device.
TEST_F(RecomputeTest, GivesTheBitsOfForwardAndQuantize) {
  for (const Shape& shape : {Shape{1000, 5120}, Shape{136, 688}, Shape{129, 272}}) {
    SCOPED_TRACE(gpu_test::describe(shape));
    const std::int64_t count = shape.rows * shape.cols;
    PairedMatrix gate(kE4M3Group16, shape.rows, shape.cols, values(count, Fill::kSpread, 1));
    PairedMatrix up(kE4M3Group16, shape.rows, shape.cols, values(count, Fill::kSpread, 2));
    PairedMatrix product(kBf16, shape.rows, shape.cols);
    PairedMatrix rows(kE4M3Tensor, shape.rows, shape.cols), expected(kE4M3Tensor, shape.cols, shape.rows),
        made(kE4M3Tensor, shape.cols, shape.rows);
    Paired<float> amax(1);
    cuda().swiglu_forward({gate.device(), up.device(), product.device(), {}, amax.device()}, {});
    cuda().quantize({product.device(), rows.device(), expected.device(), amax.device()}, {});
    cuda().swiglu_recompute({gate.device(), up.device(), amax.device(), {{}, made.device()}}, {});
    EXPECT_EQ(made.data().from_device(), expected.data().from_device());
    EXPECT_EQ(made.scale().from_device(), expected.scale().from_device());
  }
}

}  // namespace
}  // namespace coat::gpu_test
