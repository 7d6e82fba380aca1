#include "worker/core/kernels/cuda/adamw_fast_kernel.cuh"

namespace coat::kernels::cuda::adamw_fast {

void launch_expanded_nearest(const AdamWLaunch& launch, cudaStream_t stream) {
  constexpr auto kRounding = Rounding::kNearestEven;
  launch_pair<ExpandedE4M3<true, kRounding>, ExpandedE4M3<false, kRounding>>(launch, stream);
}

}  // namespace coat::kernels::cuda::adamw_fast
