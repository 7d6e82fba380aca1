// ErrorSums from partial sums of a kernel's blocks.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/core/kernels/api/kernels.h"

namespace coat::kernels::cuda {

// Adds blocks * sums_per_block structs, struct j of every block to *totals[j], in order of the blocks. Waits
// for the stream. `partial` is device memory.
void add_error_sums(const ErrorSums* partial, int blocks, int sums_per_block, ErrorSums* const* totals,
                    const char* operation, cudaStream_t stream);

}  // namespace coat::kernels::cuda
