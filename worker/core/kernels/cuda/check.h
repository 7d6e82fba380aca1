// Turns CUDA and cuBLASLt error codes into the core's exceptions.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace coat::kernels::cuda {

// Throws OutOfDeviceMemoryError where the device has no memory left, DeviceFaultError for every other error;
// both name the operation.
void check(cudaError_t status, const char* operation);
void check(cublasStatus_t status, const char* operation);

// After every launch. Errors of the running kernel itself surface at a later call, as CUDA reports them.
inline void check_launch(const char* operation) { check(cudaGetLastError(), operation); }

}  // namespace coat::kernels::cuda
