// The fast versions of the optimizer step, for the formats that training uses. Each gives the bits of the
// general one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_entry.h"

namespace coat::kernels::cuda::adamw_fast {

inline constexpr std::int64_t kTile = 512;  // elements; tiles of AdamWLaunch here

// Whether there is a version for the launch's formats and scalars.
bool suits(const AdamWLaunch& launch);
void launch(const AdamWLaunch& launch, cudaStream_t stream);

// One pair of codes each, rounded stochastically unless the name says otherwise: m and v in expanded E4M3, in
// octave codes, or m in the former and v in the latter.
void launch_expanded(const AdamWLaunch& launch, cudaStream_t stream);
void launch_expanded_nearest(const AdamWLaunch& launch, cudaStream_t stream);
void launch_octave(const AdamWLaunch& launch, cudaStream_t stream);
void launch_expanded_octave(const AdamWLaunch& launch, cudaStream_t stream);

}  // namespace coat::kernels::cuda::adamw_fast
