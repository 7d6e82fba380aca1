// The device itself: streams, errors, and a build without CUDA.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/paired.h"
#include "worker/core/base/error.h"

namespace coat::gpu_test {
namespace {

using DeviceTest = GpuTest;
using DeviceFaultTest = GpuTest;

TEST_F(DeviceTest, IsDescribed) {
  std::printf("device: %s\n", device_description().c_str());
  EXPECT_STREQ(cuda().device_name(), "cuda");
  EXPECT_TRUE(cuda().needs_k_major(Format::kE4M3));
  EXPECT_TRUE(cuda().needs_k_major(Format::kE5M2));
  EXPECT_FALSE(cuda().needs_k_major(Format::kBf16));
}

// A chain of operations on a stream of its own: each must wait for the one before, and for no other stream.
TEST_F(DeviceTest, OperationsRunOnTheStreamThatIsAsked) {
  DeviceStream stream;
  const kernels::Stream queue{stream.handle()};
  PairedMatrix x(kBf16, 256, 512, values(256 * 512, Fill::kSpread, 1)), y(kBf16, 256, 512);
  PairedMatrix codes(kE4M3Tensor, 256, 512), transposed(kE4M3Tensor, 512, 256), back(kBf16, 256, 512);
  Paired<float> weight(values(512, Fill::kSpread, 2)), rstd(256), amax(1);
  cpu().rms_norm_forward({x.host(), weight.host(), 1e-5f, y.host(), rstd.host(), amax.host()}, {});
  cpu().quantize({y.host(), codes.host(), transposed.host(), amax.host()}, {});
  cpu().dequantize(codes.host(), back.host(), {});
  cuda().rms_norm_forward({x.device(), weight.device(), 1e-5f, y.device(), rstd.device(), amax.device()},
                          queue);
  cuda().quantize({y.device(), codes.device(), transposed.device(), amax.device()}, queue);
  cuda().dequantize(codes.device(), back.device(), queue);
  stream.wait();
  EXPECT_TRUE(same_bits(codes));
  EXPECT_TRUE(same_bits(transposed));
  EXPECT_TRUE(same_bits(back));
}

TEST_F(DeviceTest, TooLittleMemoryIsItsOwnError) {
  Paired<std::uint8_t> some(256);
  const TensorFormat grouped = kE4M3Group16;  // is decoded to FP32 scratch: 16 TiB of it, before any launch
  const Matrix huge{some.device(), some.device(), grouped, std::int64_t{1} << 21, std::int64_t{1} << 21};
  const Matrix out{some.device(), nullptr, kBf16, std::int64_t{1} << 21, std::int64_t{1} << 21};
  EXPECT_THROW(cuda().gemm({huge, huge, kernels::Layout::kKMajor, kernels::Layout::kKMajor, out, false}, {}),
               OutOfDeviceMemoryError);
  Paired<float> amax(1);  // the device is as good as before
  PairedMatrix x(kBf16, 17, 256, values(17 * 256, Fill::kSpread, 1));
  cpu().amax(x.host(), amax.host(), {});
  cuda().amax(x.device(), amax.device(), {});
  EXPECT_TRUE(same_bits(amax));
}

// Reads where no memory is. The device's context is lost with that, so it happens in a process of its own,
// which ends with 42 when the error came as it should.
[[noreturn]] void fault() {
  const Matrix nowhere{reinterpret_cast<void*>(std::uintptr_t{4096}), nullptr, kBf16, 64, 64};
  kernels::ErrorSums sums;
  try {
    kernels::cuda_kernels().quantization_error(nowhere, nowhere, &sums, {});
  } catch (const DeviceFaultError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(42);
  }
  std::_Exit(1);
}

TEST_F(DeviceFaultTest, NamesTheOperation) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fault(), testing::ExitedWithCode(42), "quantization_error");
}

// In a build without CUDA there is one clear error, and no device to test.
TEST(NoCuda, IsOneClearError) {
  if (device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  try {
    EXPECT_STREQ(kernels::cuda_kernels().device_name(), "cuda");
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("cmake --preset cuda"), std::string::npos);
  }
}

}  // namespace
}  // namespace coat::gpu_test
