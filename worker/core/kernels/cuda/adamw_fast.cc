#include "worker/core/kernels/cuda/adamw_fast.h"

namespace coat::kernels::cuda::adamw_fast {
namespace {

// Up to the paper's bound the smallest magnitude of a group is code 1 at least.
constexpr float kLargestLogBound = 16 * 17.80736f;
// Below, the root of v = 0 would show (adamw_fast.cuh); above, a quotient might leave the normal numbers.
constexpr float kSmallestEps = 0x1p-33f, kLargestEps = 1.0f;

bool suits(const MomentStore& store) {
  return store.expand && store.group == 128 && store.stochastic && !store.bf16_amax;
}

bool is_expanded(const MomentStore& store) {
  return store.code == MomentCode::kE4M3 && store.log_bound <= kLargestLogBound;
}

using Launcher = void (*)(const AdamWLaunch&, cudaStream_t);

Launcher launcher_of(const AdamWLaunch& launch) {
  const bool octave_m = launch.store1.code == MomentCode::kOctave8;
  if (launch.store2.code == MomentCode::kOctave8Unsigned) {
    return octave_m ? launch_octave : is_expanded(launch.store1) ? launch_expanded_octave : nullptr;
  }
  return is_expanded(launch.store1) && is_expanded(launch.store2) ? launch_expanded : nullptr;
}

}  // namespace

bool suits(const AdamWLaunch& launch) {
  const StepScalars& s = launch.scalars;
  return suits(launch.store1) && suits(launch.store2) && launcher_of(launch) != nullptr &&
         s.eps >= kSmallestEps && s.eps <= kLargestEps;
}

void launch(const AdamWLaunch& launch, cudaStream_t stream) { launcher_of(launch)(launch, stream); }

}  // namespace coat::kernels::cuda::adamw_fast
