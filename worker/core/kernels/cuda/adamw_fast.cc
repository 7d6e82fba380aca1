#include "worker/core/kernels/cuda/adamw_fast.h"

namespace coat::kernels::cuda::adamw_fast {
namespace {

// Up to the paper's bound the smallest magnitude of a group is code 1 at least.
constexpr float kLargestLogBound = 16 * 17.80736f;
// Below, the root of v = 0 would show (kAlmostZero).
constexpr float kSmallestEps = 0x1p-33f;
// Within these, no denominator or quotient leaves the normal numbers: roots are at most 2^20, first moments
// 2^60.
constexpr float kSmallestInverseStep = 0x1p-20f, kLargestInverseStep = 0x1p60f,
                kLargestDenominatorEps = 0x1p60f;

bool suits(const MomentStore& store) { return store.expand && store.group == 128 && !store.bf16_amax; }

bool is_expanded(const MomentStore& store) {
  return store.code == MomentCode::kE4M3 && store.log_bound <= kLargestLogBound;
}

using Launcher = void (*)(const AdamWLaunch&, cudaStream_t);

Launcher launcher_of(const AdamWLaunch& launch) {
  const bool stochastic = launch.store1.stochastic;
  if (launch.store2.stochastic != stochastic) return nullptr;
  if (is_expanded(launch.store1) && is_expanded(launch.store2)) {
    return stochastic ? launch_expanded : launch_expanded_nearest;
  }
  if (!stochastic || launch.store2.code != MomentCode::kOctave8Unsigned) return nullptr;
  if (launch.store1.code == MomentCode::kOctave8) return launch_octave;
  return is_expanded(launch.store1) ? launch_expanded_octave : nullptr;
}

}  // namespace

bool suits(const AdamWLaunch& launch) {
  const StepScalars& s = launch.scalars;
  return suits(launch.store1) && suits(launch.store2) && launcher_of(launch) != nullptr &&
         s.inverse_step >= kSmallestInverseStep && s.inverse_step <= kLargestInverseStep &&
         s.eps >= kSmallestEps * s.inverse_step && s.eps <= kLargestDenominatorEps;
}

void launch(const AdamWLaunch& launch, cudaStream_t stream) { launcher_of(launch)(launch, stream); }

}  // namespace coat::kernels::cuda::adamw_fast
