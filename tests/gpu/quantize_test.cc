#include <cstring>

#include "tests/gpu/paired.h"
#include "worker/core/base/error.h"

namespace coat::gpu_test {
namespace {

using QuantizeTest = GpuTest;

const std::vector<TensorFormat> kStoredFormats = {kFp32,
                                                  kBf16,
                                                  kE4M3Tensor,
                                                  kE5M2Tensor,
                                                  kE4M3Group16,
                                                  kE4M3Group128,
                                                  kE5M2Group32,
                                                  kE4M3Group64,
                                                  kE4M3Group32E8M0,
                                                  kE4M3Row,
                                                  kE4M3Block128,
                                                  kE5M2Block128,
                                                  kReferenceE4M3,
                                                  kReferenceE5M2,
                                                  kReferenceGroup16,
                                                  {Format::kE4M3, Scaling::kNone, 0, ScaleFormat::kFp32},
                                                  {Format::kE5M2, Scaling::kNone, 0, ScaleFormat::kFp32}};
constexpr Fill kFills[] = {Fill::kSpread, Fill::kZeros, Fill::kConstant, Fill::kTiny, Fill::kSpecial};

void quantize_both(const kernels::Kernels& cpu, const kernels::Kernels& cuda, PairedMatrix& in,
                   PairedMatrix& out, PairedMatrix* transposed, Paired<float>* amax) {
  cpu.quantize(
      {in.host(), out.host(), transposed ? transposed->host() : Matrix{}, amax ? amax->host() : nullptr}, {});
  cuda.quantize({in.device(), out.device(), transposed ? transposed->device() : Matrix{},
                 amax ? amax->device() : nullptr},
                {});
}

TEST_F(QuantizeTest, EveryFormatShapeAndKindOfDataGivesTheTwinsBits) {
  std::uint64_t seed = 1;
  for (const TensorFormat& format : kStoredFormats) {
    for (const Shape& shape : small_shapes()) {
      for (const Fill fill : kFills) {
        SCOPED_TRACE(describe(format) + ", " + describe(shape) + ", fill " +
                     std::to_string(static_cast<int>(fill)));
        for (const TensorFormat& source : {kFp32, kBf16}) {
          PairedMatrix in(source, shape.rows, shape.cols, values(shape.rows * shape.cols, fill, ++seed));
          PairedMatrix out(format, shape.rows, shape.cols);
          quantize_both(cpu(), cuda(), in, out, nullptr, nullptr);
          EXPECT_TRUE(same_bits(out));
        }
      }
    }
  }
}

TEST_F(QuantizeTest, ActivationShapes) {
  for (const Shape& shape : activation_shapes()) {
    PairedMatrix in(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 7));
    for (const TensorFormat& format : {kE4M3Tensor, kE4M3Group16, kE4M3Group128}) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix out(format, shape.rows, shape.cols);
      quantize_both(cpu(), cuda(), in, out, nullptr, nullptr);
      EXPECT_TRUE(same_bits(out));
    }
  }
}

TEST_F(QuantizeTest, TransposedCodesAreTheSameCodes) {
  std::vector<Shape> shapes = small_shapes();
  shapes.push_back({1000, 5120});
  shapes.push_back({129, 13824});
  for (const TensorFormat& format :
       {kBf16, kFp32, kE4M3Tensor, kE5M2Tensor, kReferenceE5M2, kE4M3Block128, kE5M2Block128}) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix in(kBf16, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 11));
      PairedMatrix out(format, shape.rows, shape.cols), transposed(format, shape.cols, shape.rows);
      quantize_both(cpu(), cuda(), in, out, &transposed, nullptr);
      EXPECT_TRUE(same_bits(out));
      EXPECT_TRUE(same_bits(transposed));
    }
  }
}

TEST_F(QuantizeTest, AMaximumThatTheProducerKnowsIsUsed) {
  PairedMatrix in(kBf16, 17, 688, values(17 * 688, Fill::kSpread, 3));
  PairedMatrix out(kE4M3Tensor, 17, 688);
  Paired<float> amax(std::vector<float>{96.0f});
  quantize_both(cpu(), cuda(), in, out, nullptr, &amax);
  EXPECT_TRUE(same_bits(out));
  float scale = 0;
  std::memcpy(&scale, out.scale().from_device().data(), sizeof scale);
  EXPECT_EQ(scale, 96.0f / 448.0f);
}

TEST_F(QuantizeTest, MisalignedMatrices) {
  for (const std::size_t misalignment : {4u, 8u}) {
    PairedMatrix in(kFp32, 33, 688, values(33 * 688, Fill::kSpread, 5), misalignment);
    for (const TensorFormat& format : {kBf16, kE4M3Group16, kE5M2Tensor}) {
      PairedMatrix out(format, 33, 688, misalignment);
      quantize_both(cpu(), cuda(), in, out, nullptr, nullptr);
      EXPECT_TRUE(same_bits(out)) << describe(format) << ", misaligned by " << misalignment;
    }
  }
}

TEST_F(QuantizeTest, StochasticRounding) {
  const std::vector<TensorFormat> formats = {kE4M3Tensor,      kE5M2Tensor,      kE4M3Group16,
                                             kE4M3Row,         kE4M3Block128,    kE4M3Group64,
                                             kE4M3Group32E8M0, kReferenceGroup16};
  for (const TensorFormat& format : formats) {
    for (const Shape& shape : small_shapes()) {
      for (const Fill fill : kFills) {
        for (const bool transposes : {false, true}) {
          if (transposes && (format.scaling == Scaling::kGroup || format.scaling == Scaling::kRow)) continue;
          SCOPED_TRACE(describe(format) + ", " + describe(shape) + ", fill " +
                       std::to_string(static_cast<int>(fill)) + (transposes ? ", transposed" : ""));
          PairedMatrix in(kFp32, shape.rows, shape.cols, values(shape.rows * shape.cols, fill, 9));
          PairedMatrix out(format, shape.rows, shape.cols), transposed(format, shape.cols, shape.rows);
          kernels::QuantizeArgs args{.rounding = Rounding::kStochastic};
          args.random.seed = 3;
          args.random.step = std::uint64_t{1} << 33;
          kernels::QuantizeArgs device = args;
          args.in = in.host();
          args.out = out.host();
          device.in = in.device();
          device.out = out.device();
          if (transposes) {
            args.out_transposed = transposed.host();
            device.out_transposed = transposed.device();
          }
          cpu().quantize(args, {});
          cuda().quantize(device, {});
          EXPECT_TRUE(same_bits(out));
          if (transposes) {
            EXPECT_TRUE(same_bits(transposed));
          }
        }
      }
    }
  }
}

// Every upper half of an FP32 with lower halves around the rounding points of BF16: all exponents, all ties
// of FP8.
TEST_F(QuantizeTest, CodecsAgreeOverTheWholeRangeOfFp32) {
  constexpr std::uint32_t kLower[] = {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234, 0xC000};
  std::vector<float> all;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : kLower) {
      const std::uint32_t bits = upper << 16 | lower;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      all.push_back(value);
    }
  }
  const auto rows = static_cast<std::int64_t>(all.size()) / 1024;
  PairedMatrix in(kFp32, rows, 1024, all);
  for (const Format format : {Format::kBf16, Format::kE4M3, Format::kE5M2}) {
    PairedMatrix out({format, Scaling::kNone, 0, ScaleFormat::kFp32}, rows, 1024);
    quantize_both(cpu(), cuda(), in, out, nullptr, nullptr);
    EXPECT_TRUE(same_bits(out)) << name_of(format);
  }
}

TEST_F(QuantizeTest, Dequantize) {
  for (const TensorFormat& format : kStoredFormats) {
    for (const Shape& shape : small_shapes()) {
      for (const TensorFormat& target : {kFp32, kBf16}) {
        SCOPED_TRACE(describe(format) + " to " + describe(target) + ", " + describe(shape));
        PairedMatrix in(format, shape.rows, shape.cols, values(shape.rows * shape.cols, Fill::kSpread, 13));
        PairedMatrix out(target, shape.rows, shape.cols);
        cpu().dequantize(in.host(), out.host(), {});
        cuda().dequantize(in.device(), out.device(), {});
        EXPECT_TRUE(same_bits(out));
      }
    }
  }
}

TEST_F(QuantizeTest, EveryCodeDecodesToTheTwinsValue) {
  for (const Format format : {Format::kE4M3, Format::kE5M2}) {
    PairedMatrix in({format, Scaling::kNone, 0, ScaleFormat::kFp32}, 16, 16), out(kFp32, 16, 16);
    for (int code = 0; code < 256; ++code) in.data().host()[code] = static_cast<std::uint8_t>(code);
    in.data().upload();
    cpu().dequantize(in.host(), out.host(), {});
    cuda().dequantize(in.device(), out.device(), {});
    EXPECT_TRUE(same_bits(out)) << name_of(format);
  }
}

// The CPU decodes groups of any size; so must CUDA, though it writes only some.
TEST_F(QuantizeTest, GroupsOfAnySizeAreRead) {
  const TensorFormat format{Format::kE4M3, Scaling::kGroup, 20, ScaleFormat::kFp32};
  PairedMatrix in(format, 9, 133, values(9 * 133, Fill::kSpread, 2)), out(kFp32, 9, 133);
  cpu().dequantize(in.host(), out.host(), {});
  cuda().dequantize(in.device(), out.device(), {});
  EXPECT_TRUE(same_bits(out));
}

TEST_F(QuantizeTest, Amax) {
  for (const TensorFormat& format : kStoredFormats) {
    for (const Fill fill : kFills) {
      if (fill == Fill::kSpecial && format.scaling != Scaling::kNone) continue;  // the scale itself is NaN
      PairedMatrix in(format, 129, 272, values(129 * 272, fill, 17));
      Paired<float> amax(1);
      cpu().amax(in.host(), amax.host(), {});
      cuda().amax(in.device(), amax.device(), {});
      EXPECT_TRUE(same_bits(amax)) << describe(format) << ", fill " << static_cast<int>(fill);
    }
  }
}

TEST_F(QuantizeTest, WrongArgumentsAreRefused) {
  PairedMatrix in(kBf16, 4, 64, values(256, Fill::kSpread, 1));
  PairedMatrix short_out(kE4M3Tensor, 4, 63), grouped(kE4M3Group16, 4, 64),
      grouped_transposed(kE4M3Group16, 64, 4);
  PairedMatrix odd_groups({Format::kE4M3, Scaling::kGroup, 20, ScaleFormat::kFp32}, 4, 64);
  EXPECT_THROW(cuda().quantize({in.device(), short_out.device(), {}, nullptr}, {}), std::logic_error);
  EXPECT_THROW(cuda().quantize({in.device(), grouped.device(), grouped_transposed.device(), nullptr}, {}),
               std::logic_error);
  EXPECT_THROW(cuda().quantize({grouped.device(), in.device(), {}, nullptr}, {}), std::logic_error);
  EXPECT_THROW(cuda().quantize({in.device(), odd_groups.device(), {}, nullptr}, {}), UnsupportedError);
}

// More than 2^31 elements: indices are 64 bits wide. The last row alone is not zero.
TEST_F(QuantizeTest, MoreThanTwoToThe31Elements) {
  constexpr std::int64_t kCols = 4096, kRows = (std::int64_t{1} << 31) / kCols + 3;
  DeviceBytes in(static_cast<std::size_t>(kRows * kCols * 2)), codes(static_cast<std::size_t>(kRows * kCols));
  DeviceBytes scales(static_cast<std::size_t>(kRows * kCols / 16 * 2));
  in.fill(0);
  PairedMatrix last(kBf16, 1, kCols, values(kCols, Fill::kSpread, 23)), expected(kE4M3Group16, 1, kCols);
  cpu().quantize({last.host(), expected.host(), {}, nullptr}, {});
  in.upload(last.data().host(), kCols * 2, static_cast<std::size_t>((kRows - 1) * kCols * 2));

  const Matrix huge_in{in.data(), nullptr, kBf16, kRows, kCols};
  cuda().quantize({huge_in, {codes.data(), scales.data(), kE4M3Group16, kRows, kCols}, {}, nullptr}, {});
  std::vector<std::uint8_t> row(kCols);
  codes.download(row.data(), kCols, static_cast<std::size_t>((kRows - 1) * kCols));
  EXPECT_EQ(std::memcmp(row.data(), expected.data().host(), kCols), 0);

  Paired<float> amax(1);
  cpu().amax(last.host(), amax.host(), {});
  cuda().amax(huge_in, amax.device(), {});
  EXPECT_TRUE(same_bits(amax));
}

}  // namespace
}  // namespace coat::gpu_test
