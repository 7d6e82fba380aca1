#include "worker/core/kernels/cuda/adamw_fast_kernel.cuh"

namespace coat::kernels::cuda::adamw_fast {

void launch_expanded_octave(const AdamWLaunch& launch, cudaStream_t stream) {
  launch_pair<ExpandedE4M3<true, Rounding::kStochastic>, Octave<false>>(launch, stream);
}

}  // namespace coat::kernels::cuda::adamw_fast
