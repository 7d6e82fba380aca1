// One product through cuBLASLt, on operands that it can take as they are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/core/quant/format.h"

namespace coat::kernels::cuda {

// An operand: [outer, summed] where the summed dimension is contiguous, else [summed, outer]; row-major,
// `stride` elements from row to row.
struct BlasOperand {
  const void* data = nullptr;
  const float* scale = nullptr;  // one value on a 16-byte border, FP8 only; nullptr: 1
  Format format = Format::kBf16;
  bool summed_is_contiguous = true;
  std::int64_t stride = 0;
};

struct BlasProduct {
  BlasOperand a;  // outer: m
  BlasOperand b;  // outer: n
  std::int64_t m = 0, n = 0, k = 0;
  void* out = nullptr;  // row-major [m, n]
  Format out_format = Format::kFp32;
  std::int64_t out_stride = 0;
  bool accumulate = false;
};

// FP32 accumulation, for FP8 in the split way (partial sums leave the tensor core before they lose bits).
// Both operands FP8, or both BF16, or both FP32 with FP32 out. UnsupportedError where cuBLASLt offers no
// algorithm.
void run_blas_product(const BlasProduct& product, cudaStream_t stream);

}  // namespace coat::kernels::cuda
