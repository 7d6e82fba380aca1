// What turns a product's FP32 result into the output that was asked for.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/core/kernels/cuda/device_matrix.h"

namespace coat::kernels::cuda {

struct FinishOptions {
  bool accumulate = false;
  bool round_product = false;  // to BF16 first
};

// out = staged, or out += staged (FP32 and BF16 only). staged: FP32, `stride` elements from row to row, at
// least out.cols; out: FP32, BF16, or FP8 with groups, whose scales are found here.
void finish_product(const float* staged, std::int64_t stride, const DeviceMatrix& out,
                    const FinishOptions& options, cudaStream_t stream);

}  // namespace coat::kernels::cuda
