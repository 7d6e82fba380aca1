// The optimizer step where both moments are FP32: no groups, nothing but reading, computing and writing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/core/kernels/cuda/adamw_entry.h"

namespace coat::kernels::cuda::adamw_plain {

inline constexpr std::int64_t kTile = 1024;  // elements; tiles of AdamWLaunch here

inline bool suits(const AdamWLaunch& launch) {
  return launch.store1.code == MomentCode::kFp32 && launch.store2.code == MomentCode::kFp32;
}
void launch(const AdamWLaunch& launch, cudaStream_t stream);

}  // namespace coat::kernels::cuda::adamw_plain
