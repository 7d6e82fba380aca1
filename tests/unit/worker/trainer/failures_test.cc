#include "worker/trainer/failures.h"

#include <new>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/core/base/error.h"

namespace coat::trainer {
namespace {

template <typename Error>
protocol::Failure failure_from(const Error& error) {
  return failure_of(std::make_exception_ptr(error));
}

// The table of worker/protocol/exit_codes.h, as numbers: they are an interface.
TEST(Failures, EveryErrorHasItsExitCode) {
  EXPECT_EQ(failure_from(SpecError("f", "m", "x")).exit_code, 64);
  EXPECT_EQ(failure_from(UnsupportedError("gemm on cuda")).exit_code, 64);
  EXPECT_EQ(failure_from(DataError("f", "m", "x")).exit_code, 65);
  EXPECT_EQ(failure_from(CheckpointError("m")).exit_code, 66);
  EXPECT_EQ(failure_from(std::runtime_error("m")).exit_code, 70);
  EXPECT_EQ(failure_from(std::logic_error("m")).exit_code, 70);
  EXPECT_EQ(failure_from(42).exit_code, 70);
  EXPECT_EQ(failure_from(OutOfDeviceMemoryError("m")).exit_code, 71);
  EXPECT_EQ(failure_from(std::bad_alloc()).exit_code, 71);
  EXPECT_EQ(failure_from(NonFiniteLossError("m")).exit_code, 72);
  EXPECT_EQ(failure_from(CollectiveError("m")).exit_code, 73);
  EXPECT_EQ(failure_from(DeviceFaultError("m")).exit_code, 74);
  EXPECT_EQ(failure_from(FencedError("m")).exit_code, 86);
}

TEST(Failures, KeepFieldAndFix) {
  const protocol::Failure failure = failure_from(DataError("data.path", "is empty", "name another"));
  EXPECT_EQ(failure.message, "is empty");
  EXPECT_EQ(failure.field, "data.path");
  EXPECT_EQ(failure.fix, "name another");
  EXPECT_EQ(failure_from(UnsupportedError("m")).field, "resources.device");
}

TEST(Failures, AllocationFailuresOfLibtorchAreOutOfMemory) {
  const auto thrown = [](auto action) {
    try {
      action();
    } catch (...) {
      return failure_of(std::current_exception());
    }
    return protocol::Failure{};
  };
  EXPECT_EQ(thrown([] { TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory"); }).exit_code, 71);
  EXPECT_EQ(thrown([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }).exit_code, 71);
  EXPECT_EQ(thrown([] { TORCH_CHECK(false, "shapes differ"); }).exit_code, 70);
}

TEST(Failures, DeviceErrorsOfLibtorchAreDeviceFaults) {
  const c10::SourceLocation here{"run", "file", 1};
  EXPECT_EQ(failure_from(c10::AcceleratorError(here, 700, "CUDA error: an illegal memory access")).exit_code,
            74);
  EXPECT_EQ(failure_from(c10::Error(here, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")).exit_code, 74);
  EXPECT_EQ(failure_from(c10::OutOfMemoryError(here, "CUDA out of memory")).exit_code, 71);
}

}  // namespace
}  // namespace coat::trainer
