// Element-wise and row-wise operations. All of them add in the twin's order and share its exp, so they give
// its bits.
#include <cmath>
#include <cstring>

#include "tests/gpu/paired.h"

namespace coat::gpu_test {
namespace {

using RmsNormTest = GpuTest;
using SwigluTest = GpuTest;
using RopeTest = GpuTest;
using ResidualAddTest = GpuTest;
using EmbeddingTest = GpuTest;

const std::vector<TensorFormat> kInputs = {kBf16, kFp32, kE4M3Group16, kE4M3Tensor};

TEST_F(RmsNormTest, Forward) {
  for (const TensorFormat& format : kInputs) {
    for (const Shape& shape : activation_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix x(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
      PairedMatrix y(kBf16, shape.rows, shape.cols);
      Paired<float> weight(values(shape.cols, Fill::kSpread, 2)), rstd(shape.rows), amax(1);
      cpu().rms_norm_forward({x.host(), weight.host(), 1e-5f, y.host(), rstd.host(), amax.host()}, {});
      cuda().rms_norm_forward({x.device(), weight.device(), 1e-5f, y.device(), rstd.device(), amax.device()},
                              {});
      EXPECT_TRUE(same_bits(y));
      EXPECT_TRUE(same_bits(rstd));
      EXPECT_TRUE(same_bits(amax));
    }
  }
}

TEST_F(RmsNormTest, ForwardOfZerosConstantsAndSpecialValues) {
  for (const Fill fill : {Fill::kZeros, Fill::kConstant, Fill::kTiny, Fill::kSpecial}) {
    PairedMatrix x(kBf16, 17, 688, values(17 * 688, fill, 1)), y(kBf16, 17, 688);
    Paired<float> weight(values(688, Fill::kSpread, 2)), rstd(17), amax(1);
    cpu().rms_norm_forward({x.host(), weight.host(), 1e-5f, y.host(), rstd.host(), amax.host()}, {});
    cuda().rms_norm_forward({x.device(), weight.device(), 1e-5f, y.device(), rstd.device(), amax.device()},
                            {});
    EXPECT_TRUE(same_bits(y)) << static_cast<int>(fill);
    EXPECT_TRUE(same_bits(rstd)) << static_cast<int>(fill);
    EXPECT_TRUE(same_bits(amax)) << static_cast<int>(fill);
  }
}

TEST_F(RmsNormTest, Backward) {
  for (const TensorFormat& format : kInputs) {
    for (const Shape& shape : activation_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix x(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
      PairedMatrix dy(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 3));
      PairedMatrix dx(kBf16, shape.rows, shape.cols);
      Paired<float> weight(values(shape.cols, Fill::kSpread, 2)),
          rstd(values(shape.rows, Fill::kConstant, 4));
      Paired<float> dweight(values(shape.cols, Fill::kSpread, 5));
      cpu().rms_norm_backward({x.host(), weight.host(), rstd.host(), dy.host(), dx.host(), dweight.host()},
                              {});
      cuda().rms_norm_backward(
          {x.device(), weight.device(), rstd.device(), dy.device(), dx.device(), dweight.device()}, {});
      EXPECT_TRUE(same_bits(dx));
      EXPECT_TRUE(same_bits(dweight));
    }
  }
}

TEST_F(RmsNormTest, BackwardInPlace) {
  PairedMatrix x(kE4M3Group16, 129, 5120, values(129 * 5120, Fill::kSpread, 1));
  PairedMatrix dy(kBf16, 129, 5120, values(129 * 5120, Fill::kSpread, 3));
  Paired<float> weight(values(5120, Fill::kSpread, 2)), rstd(values(129, Fill::kConstant, 4));
  Paired<float> dweight(std::vector<float>(5120, 0.0f));
  cpu().rms_norm_backward({x.host(), weight.host(), rstd.host(), dy.host(), dy.host(), dweight.host()}, {});
  cuda().rms_norm_backward(
      {x.device(), weight.device(), rstd.device(), dy.device(), dy.device(), dweight.device()}, {});
  EXPECT_TRUE(same_bits(dy));
  EXPECT_TRUE(same_bits(dweight));
}

TEST_F(SwigluTest, Forward) {
  for (const TensorFormat& format : kInputs) {
    for (const Shape& shape : activation_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix gate(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
      PairedMatrix up(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 2));
      PairedMatrix product(kBf16, shape.rows, shape.cols);
      Paired<float> amax(1);
      cpu().swiglu_forward({gate.host(), up.host(), product.host(), {}, amax.host()}, {});
      cuda().swiglu_forward({gate.device(), up.device(), product.device(), {}, amax.device()}, {});
      EXPECT_TRUE(same_bits(product));
      EXPECT_TRUE(same_bits(amax));
    }
  }
}

TEST_F(SwigluTest, ForwardKeepsTheActivationInAnyFormat) {
  for (const TensorFormat& format : {kBf16, kE4M3Group16, kE4M3Group128, kE4M3Tensor}) {
    for (const Shape& shape : small_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix gate(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
      PairedMatrix up(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 2));
      PairedMatrix product(kBf16, shape.rows, shape.cols), kept(format, shape.rows, shape.cols);
      cpu().swiglu_forward({gate.host(), up.host(), product.host(), kept.host(), nullptr}, {});
      cuda().swiglu_forward({gate.device(), up.device(), product.device(), kept.device(), nullptr}, {});
      EXPECT_TRUE(same_bits(product));
      EXPECT_TRUE(same_bits(kept));
    }
  }
}

TEST_F(SwigluTest, SpecialValuesAndTheWholeRangeOfExp) {
  std::vector<float> range;
  for (int i = 0; i < 4096; ++i) range.push_back(-128.0f + static_cast<float>(i) * 0.0625f);
  PairedMatrix gate(kFp32, 4, 1024, range), special(kFp32, 4, 1024, values(4096, Fill::kSpecial, 3));
  for (PairedMatrix* in : {&gate, &special}) {
    PairedMatrix up(kBf16, 4, 1024, values(4096, Fill::kConstant, 2)), product(kBf16, 4, 1024);
    PairedMatrix kept(kFp32, 4, 1024);
    Paired<float> amax(1);
    cpu().swiglu_forward({in->host(), up.host(), product.host(), kept.host(), amax.host()}, {});
    cuda().swiglu_forward({in->device(), up.device(), product.device(), kept.device(), amax.device()}, {});
    EXPECT_TRUE(same_bits(kept));
    EXPECT_TRUE(same_bits(product));
    EXPECT_TRUE(same_bits(amax));
  }
}

// The gate from its smallest subnormal code to beyond what the hardware's exponential serves, with scales
// that no maximum of random values would give.
TEST_F(SwigluTest, EveryCodeAndScaleOfTheGate) {
  constexpr std::uint16_t kFirst = 0x2A80, kLast = 0x4080;  // 2^-42 .. 4
  constexpr std::int64_t kRows = kLast - kFirst, kCols = 256;
  PairedMatrix gate(kE4M3Group16, kRows, kCols), product(kBf16, kRows, kCols);
  PairedMatrix up(kE4M3Group16, kRows, kCols, values(kRows * kCols, Fill::kSpread, 2));
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t col = 0; col < kCols; ++col) {
      gate.data().host()[row * kCols + col] = static_cast<std::uint8_t>(col);
    }
    const auto scale = static_cast<std::uint16_t>(kFirst + row);
    for (std::int64_t group = 0; group < kCols / 16; ++group) {
      std::memcpy(gate.scale().host() + 2 * (row * kCols / 16 + group), &scale, sizeof scale);
    }
  }
  gate.data().upload();
  gate.scale().upload();
  Paired<float> amax(1);
  cpu().swiglu_forward({gate.host(), up.host(), product.host(), {}, amax.host()}, {});
  cuda().swiglu_forward({gate.device(), up.device(), product.device(), {}, amax.device()}, {});
  EXPECT_TRUE(same_bits(product));
  EXPECT_TRUE(same_bits(amax));
}

TEST_F(SwigluTest, Backward) {
  for (const TensorFormat& format : kInputs) {
    for (const Shape& shape : activation_shapes()) {
      for (const bool saved : {false, true}) {
        SCOPED_TRACE(describe(format) + ", " + describe(shape) + (saved ? ", activation saved" : ""));
        PairedMatrix gate(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
        PairedMatrix up(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 2));
        PairedMatrix dproduct(kBf16, shape.rows, shape.cols,
                              values(shape.rows * shape.cols, Fill::kSpread, 3));
        PairedMatrix activation(format, shape.rows, shape.cols,
                                values(shape.rows * shape.cols, Fill::kSpread, 4));
        PairedMatrix dgate(kBf16, shape.rows, shape.cols), dup(kBf16, shape.rows, shape.cols);
        Paired<float> dgate_amax(1), dup_amax(1);
        cpu().swiglu_backward({gate.host(), up.host(), dproduct.host(), saved ? activation.host() : Matrix{},
                               dgate.host(), dup.host(), dgate_amax.host(), dup_amax.host()},
                              {});
        cuda().swiglu_backward(
            {gate.device(), up.device(), dproduct.device(), saved ? activation.device() : Matrix{},
             dgate.device(), dup.device(), dgate_amax.device(), dup_amax.device()},
            {});
        EXPECT_TRUE(same_bits(dgate));
        EXPECT_TRUE(same_bits(dup));
        EXPECT_TRUE(same_bits(dgate_amax));
        EXPECT_TRUE(same_bits(dup_amax));
      }
    }
  }
}

TEST_F(SwigluTest, ProductOfTheStoredActivation) {
  for (const TensorFormat& format : {kReferenceGroup16, kE4M3Group16, kE4M3Group128, kE4M3Tensor, kBf16}) {
    for (const Shape& shape : activation_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix gate(kReferenceGroup16, shape.rows, shape.cols,
                        values(shape.rows * shape.cols, Fill::kSpread, 1));
      PairedMatrix up(kReferenceGroup16, shape.rows, shape.cols,
                      values(shape.rows * shape.cols, Fill::kSpread, 2));
      PairedMatrix product(kBf16, shape.rows, shape.cols), kept(format, shape.rows, shape.cols);
      Paired<float> amax(1);
      cpu().swiglu_forward({gate.host(), up.host(), product.host(), kept.host(), amax.host(), true}, {});
      cuda().swiglu_forward(
          {gate.device(), up.device(), product.device(), kept.device(), amax.device(), true}, {});
      EXPECT_TRUE(same_bits(product));
      EXPECT_TRUE(same_bits(kept));
      EXPECT_TRUE(same_bits(amax));
    }
  }
}

TEST_F(SwigluTest, BackwardThroughARoundedGradientOfTheActivation) {
  for (const TensorFormat& format : {kE4M3Group16, kReferenceGroup16, kBf16}) {
    for (const Shape& shape : activation_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      const std::int64_t count = shape.rows * shape.cols;
      PairedMatrix gate(format, shape.rows, shape.cols, values(count, Fill::kSpread, 1));
      PairedMatrix up(format, shape.rows, shape.cols, values(count, Fill::kSpread, 2));
      PairedMatrix dproduct(kBf16, shape.rows, shape.cols, values(count, Fill::kSpread, 3));
      PairedMatrix activation(format, shape.rows, shape.cols, values(count, Fill::kSpread, 4));
      PairedMatrix dgate(kBf16, shape.rows, shape.cols), dup(kBf16, shape.rows, shape.cols);
      Paired<float> dgate_amax(1), dup_amax(1);
      cpu().swiglu_backward({gate.host(), up.host(), dproduct.host(), activation.host(), dgate.host(),
                             dup.host(), dgate_amax.host(), dup_amax.host(), true},
                            {});
      cuda().swiglu_backward({gate.device(), up.device(), dproduct.device(), activation.device(),
                              dgate.device(), dup.device(), dgate_amax.device(), dup_amax.device(), true},
                             {});
      EXPECT_TRUE(same_bits(dgate));
      EXPECT_TRUE(same_bits(dup));
      EXPECT_TRUE(same_bits(dgate_amax));
      EXPECT_TRUE(same_bits(dup_amax));
    }
  }
}

struct RopeCase {
  std::int64_t rows, heads, head_dim, sequence_length;
  float theta;
};

// The angles' sines and cosines are taken in FP64 on both sides and rounded to FP32. They differ by at most 2
// units of FP64's last place, so the FP32 values differ only where such a value lies that near to a rounding
// point, once in 2^27, and the BF16 result only if it then crosses one as well.
TEST_F(RopeTest, ForwardAndBackward) {
  const RopeCase cases[] = {{1, 1, 64, 1, 10000.0f},        {17, 4, 64, 17, 10000.0f},
                            {1000, 40, 128, 500, 10000.0f}, {129, 3, 2, 129, 10000.0f},
                            {2048, 4, 64, 2048, 500000.0f}, {65, 2, 512, 64, 10000.0f},
                            {4100, 1, 128, 8192, 500000.0f}};
  for (const RopeCase& c : cases) {
    for (const bool inverse : {false, true}) {
      const std::int64_t cols = c.heads * c.head_dim;
      SCOPED_TRACE(describe(Shape{c.rows, cols}) + (inverse ? ", inverse" : ""));
      PairedMatrix x(kBf16, c.rows, cols, values(c.rows * cols, Fill::kSpread, 1));
      Paired<float> amax(1);
      cpu().rope({x.host(), c.heads, c.head_dim, c.sequence_length, c.theta, inverse, amax.host()}, {});
      cuda().rope({x.device(), c.heads, c.head_dim, c.sequence_length, c.theta, inverse, amax.device()}, {});
      EXPECT_TRUE(same_bits(x));
      EXPECT_TRUE(same_bits(amax));
    }
  }
}

TEST_F(ResidualAddTest, SumAndQuantized) {
  for (const TensorFormat& format : {kE4M3Group16, kReferenceGroup16, kE4M3Group128, kFp32, kBf16}) {
    for (const Shape& shape : activation_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix a(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 1));
      PairedMatrix b(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 2));
      PairedMatrix sum(kBf16, shape.rows, shape.cols), quantized(format, shape.rows, shape.cols);
      Paired<float> amax(1);
      cpu().residual_add({a.host(), b.host(), sum.host(), quantized.host(), amax.host()}, {});
      cuda().residual_add({a.device(), b.device(), sum.device(), quantized.device(), amax.device()}, {});
      EXPECT_TRUE(same_bits(sum));
      EXPECT_TRUE(same_bits(quantized));
      EXPECT_TRUE(same_bits(amax));
    }
  }
}

TEST_F(ResidualAddTest, InPlaceWithSpecialValues) {
  PairedMatrix a(kBf16, 17, 688, values(17 * 688, Fill::kSpecial, 1)),
      b(kBf16, 17, 688, values(17 * 688, Fill::kSpecial, 2));
  Paired<float> amax(1);
  cpu().residual_add({a.host(), b.host(), a.host(), {}, amax.host()}, {});
  cuda().residual_add({a.device(), b.device(), a.device(), {}, amax.device()}, {});
  EXPECT_TRUE(same_bits(a));
  EXPECT_TRUE(same_bits(amax));
}

TEST_F(EmbeddingTest, Forward) {
  constexpr std::int32_t kVocab = 257;
  for (const Shape& shape : activation_shapes()) {
    SCOPED_TRACE(describe(shape));
    for (const TensorFormat& stored : {kFp32, kBf16}) {
      PairedMatrix weight(stored, kVocab, shape.cols, values(kVocab * shape.cols, Fill::kSpread, 1));
      Paired<std::int32_t> tokens(indices(shape.rows, kVocab, 2));
      PairedMatrix out(kBf16, shape.rows, shape.cols), quantized(kE4M3Group16, shape.rows, shape.cols);
      cpu().embedding_forward({tokens.host(), weight.host(), out.host(), quantized.host()}, {});
      cuda().embedding_forward({tokens.device(), weight.device(), out.device(), quantized.device()}, {});
      EXPECT_TRUE(same_bits(out));
      EXPECT_TRUE(same_bits(quantized));
    }
  }
}

TEST_F(EmbeddingTest, BackwardAddsRowsInOrder) {
  for (const std::int32_t vocab : {1, 5, 257, 32000}) {
    for (const Shape& shape : {Shape{1000, 688}, Shape{17, 5120}, Shape{1, 77}, Shape{3000, 256}}) {
      SCOPED_TRACE(describe(shape) + ", vocabulary " + std::to_string(vocab));
      Paired<std::int32_t> tokens(indices(shape.rows, vocab, 2));
      PairedMatrix dy(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 3));
      Paired<float> dweight(values(vocab * shape.cols, Fill::kSpread, 4));
      cpu().embedding_backward({tokens.host(), dy.host(), vocab, dweight.host()}, {});
      cuda().embedding_backward({tokens.device(), dy.device(), vocab, dweight.device()}, {});
      EXPECT_TRUE(same_bits(dweight));
    }
  }
}

// A kernel cannot throw: the token shows as NaN, and nothing is written out of bounds.
TEST_F(EmbeddingTest, TokensOutsideTheVocabulary) {
  PairedMatrix weight(kFp32, 8, 64, values(8 * 64, Fill::kSpread, 1));
  Paired<float> dweight(std::vector<float>(8 * 64, 0.0f));
  Paired<std::int32_t> tokens(std::vector<std::int32_t>{3, 8, -1});
  PairedMatrix out(kBf16, 3, 64), dy(kBf16, 3, 64, values(3 * 64, Fill::kSpread, 3));
  cuda().embedding_forward({tokens.device(), weight.device(), out.device(), {}}, {});
  const std::vector<float> read = out.decoded_device();
  for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(std::isnan(read[i]), i >= 64) << i;
  cuda().embedding_backward({tokens.device(), dy.device(), 8, dweight.device()}, {});
  EXPECT_TRUE(dweight.guards_are_intact());
  double written = 0;
  for (const float value : dweight.from_device()) written += std::fabs(value);
  double expected = 0;
  const std::vector<float> gradient = dy.decoded_host();
  for (std::size_t i = 0; i < 64; ++i) expected += std::fabs(gradient[i]);
  EXPECT_DOUBLE_EQ(written, expected);
}

}  // namespace
}  // namespace coat::gpu_test
