// A sum whose order is that of its terms.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace coat::kernels::cuda {

// *total += values[0] + values[1] + ..., one after the other. Device memory.
void add_in_order(const double* values, std::int64_t count, double* total, const char* operation,
                  cudaStream_t stream);

}  // namespace coat::kernels::cuda
