#include "worker/core/kernels/cuda/check.h"

#include <string>

#include "worker/core/base/error.h"

namespace coat::kernels::cuda {
namespace {

std::string describe(const char* operation, const std::string& reason) {
  return std::string("CUDA operation '") + operation + "' failed: " + reason;
}

}  // namespace

void check(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  const std::string message =
      describe(operation, std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")");
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // a failed allocation is not sticky: forget it
    throw OutOfDeviceMemoryError(message);
  }
  throw DeviceFaultError(message);
}

void check(cublasStatus_t status, const char* operation) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string message = describe(operation, cublasLtGetStatusName(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfDeviceMemoryError(message);
  throw DeviceFaultError(message);
}

}  // namespace coat::kernels::cuda
