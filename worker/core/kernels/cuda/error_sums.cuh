// Sums of one thread's errors over its block. Device code only.
#pragma once

#include "worker/core/kernels/api/kernels.h"
#include "worker/core/kernels/cuda/reduce.cuh"

namespace coat::kernels::cuda {

__device__ inline void add_error(double reference, double stored, ErrorSums& sums) {
  sums.error_squared += (stored - reference) * (stored - reference);
  sums.reference_squared += reference * reference;
  sums.underflowed += reference != 0.0 && stored == 0.0 ? 1.0 : 0.0;
  sums.elements += 1.0;
}

// Every thread of the block takes part; the sums end in *out.
__device__ inline void store_block_sums(const ErrorSums& mine, ErrorSums* out) {
  ErrorSums sums;
  sums.error_squared = block_sum(mine.error_squared);
  sums.reference_squared = block_sum(mine.reference_squared);
  sums.saturated = block_sum(mine.saturated);
  sums.underflowed = block_sum(mine.underflowed);
  sums.elements = block_sum(mine.elements);
  sums.k_sum = block_sum(mine.k_sum);
  sums.k_groups = block_sum(mine.k_groups);
  for (std::size_t i = 0; i < sums.k_histogram.size(); ++i)
    sums.k_histogram[i] = block_sum(mine.k_histogram[i]);
  if (threadIdx.x == 0) *out = sums;
}

}  // namespace coat::kernels::cuda
