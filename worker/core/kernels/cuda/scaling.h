// One scale per tensor: found from its maximum on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/core/kernels/cuda/device_matrix.h"

namespace coat::kernels::cuda {

// *amax = 0, the maximum of an empty matrix; nullptr: nothing to do.
void clear_amax(float* amax, const char* operation, cudaStream_t stream);

// Stores the scale of `out` (kTensor) for values up to *amax, and the same one for `twin` unless twin.data is
// nullptr.
void store_tensor_scale(const float* amax, const DeviceMatrix& out, const DeviceMatrix& twin,
                        const char* operation, cudaStream_t stream);

}  // namespace coat::kernels::cuda
