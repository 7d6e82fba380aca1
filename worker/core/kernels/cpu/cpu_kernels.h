// The plain twins: every operation on the CPU, FP8 emulated exactly. Always built.
#pragma once

#include "worker/core/kernels/api/kernels.h"

namespace coat::kernels {

// Lives for the whole program. Uses ATen's thread pool; pointers are host memory.
//
// Memory beside the arguments: gemm holds an FP32 copy of each operand that is not FP32, from ATen's
// allocator, until it returns; every operation has row buffers a thread, and rms_norm_backward one row of
// sums for 64 rows.
const Kernels& cpu_kernels();

}  // namespace coat::kernels
