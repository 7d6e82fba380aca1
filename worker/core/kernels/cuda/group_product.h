// One product of E4M3 operands whose result is quantized in groups before it leaves a multiprocessor: no FP32
// copy of it is written and read again.
#pragma once

#include "worker/core/kernels/cuda/blas_product.h"
#include "worker/core/kernels/cuda/device_matrix.h"

namespace coat::kernels::cuda {

// Whether the product, prepared as for cuBLASLt, can be made so: E4M3 with the summed dimension contiguous,
// `out` E4M3 in groups of 16.
bool suits_group_product(const BlasProduct& product, const DeviceMatrix& out);

// out = a b^T. FP32 accumulation in the split way: 128 products at a time leave the tensor core.
void run_group_product(const BlasProduct& product, const DeviceMatrix& out, cudaStream_t stream);

}  // namespace coat::kernels::cuda
