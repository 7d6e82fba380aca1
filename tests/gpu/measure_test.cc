#include <cmath>
#include <deque>
#include <limits>

#include "tests/gpu/paired.h"
#include "worker/core/quant/bf16.h"

namespace coat::gpu_test {
namespace {

using kernels::ErrorSums;
using MeasureTest = GpuTest;

TEST_F(MeasureTest, SumOfSquaresHasTheTwinsBits) {
  for (const std::int64_t elements : {0, 1, 7, 4096, 4097, 100003, 5000000}) {
    for (const Fill fill : {Fill::kSpread, Fill::kZeros, Fill::kTiny}) {
      Paired<float> data(values(elements, fill, 1));
      Paired<double> sum(std::vector<double>{0.5});
      cpu().sum_of_squares({{data.host(), Format::kFp32, elements}}, sum.host(), {});
      cuda().sum_of_squares({{data.device(), Format::kFp32, elements}}, sum.device(), {});
      EXPECT_TRUE(same_bits(sum)) << elements << " elements, fill " << static_cast<int>(fill);
    }
  }
}

TEST_F(MeasureTest, ManyArraysInOneSumHaveTheTwinsBits) {
  std::deque<Paired<float>> wide;
  std::deque<Paired<std::uint16_t>> narrow;
  std::vector<kernels::SquaredArray> host, device;
  for (const std::int64_t elements : {70000, 1, 0, 65536, 65537, 300, 200001}) {
    wide.emplace_back(values(elements, Fill::kSpread, wide.size()));
    std::vector<std::uint16_t> codes;
    for (const float value : values(elements, Fill::kSpread, 100 + narrow.size()))
      codes.push_back(encode_bf16(value));
    narrow.emplace_back(codes, narrow.size() % 2 == 0 ? 0 : 2);
  }
  for (std::size_t i = 0; i < wide.size(); ++i) {
    host.push_back({wide[i].host(), Format::kFp32, wide[i].count()});
    device.push_back({wide[i].device(), Format::kFp32, wide[i].count()});
    host.push_back({narrow[i].host(), Format::kBf16, narrow[i].count()});
    device.push_back({narrow[i].device(), Format::kBf16, narrow[i].count()});
  }
  Paired<double> sum(std::vector<double>{0.25});
  cpu().sum_of_squares(host, sum.host(), {});
  cuda().sum_of_squares(device, sum.device(), {});
  EXPECT_TRUE(same_bits(sum));
}

TEST_F(MeasureTest, NonFiniteElementsShowInTheSum) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> contents = values(70000, Fill::kSpread, 1);
    contents[69999] = bad;
    Paired<float> data(contents);
    Paired<double> sum(std::vector<double>{0});
    cuda().sum_of_squares({{data.device(), Format::kFp32, data.count()}}, sum.device(), {});
    EXPECT_FALSE(std::isfinite(sum.from_device()[0]));
  }
}

TEST_F(MeasureTest, QuantizationError) {
  for (const TensorFormat& format :
       {kBf16, kE4M3Tensor, kE5M2Tensor, kE4M3Group16, kE4M3Group128, kE4M3Row, kE5M2Block128}) {
    for (const Shape& shape : small_shapes()) {
      SCOPED_TRACE(describe(format) + ", " + describe(shape));
      PairedMatrix reference(kFp32, shape.rows, shape.cols,
                             values(shape.rows * shape.cols, Fill::kSpread, 1));
      // Scales that are too small for some values: those saturate.
      std::vector<float> smaller = reference.decoded_host();
      for (float& value : smaller) value *= 0.25f;
      PairedMatrix stored(format, shape.rows, shape.cols, smaller);
      ErrorSums cpu_sums, cuda_sums;
      for (int repeat = 0; repeat < 2; ++repeat) {  // accumulated
        cpu().quantization_error(reference.host(), stored.host(), &cpu_sums, {});
        cuda().quantization_error(reference.device(), stored.device(), &cuda_sums, {});
      }
      EXPECT_NEAR(cpu_sums.error_squared, cuda_sums.error_squared, 1e-12 * cpu_sums.error_squared);
      EXPECT_NEAR(cpu_sums.reference_squared, cuda_sums.reference_squared,
                  1e-12 * cpu_sums.reference_squared);
      EXPECT_EQ(cpu_sums.saturated, cuda_sums.saturated);
      EXPECT_EQ(cpu_sums.underflowed, cuda_sums.underflowed);
      EXPECT_EQ(cpu_sums.elements, cuda_sums.elements);
    }
  }
}

}  // namespace
}  // namespace coat::gpu_test
