// The plain twins: every operation on the CPU, FP8 emulated exactly. Always built.
#pragma once

#include "worker/core/kernels/api/kernels.h"

namespace coat::kernels {

// Lives for the whole program. Uses ATen's thread pool; pointers are host memory.
const Kernels& cpu_kernels();

}  // namespace coat::kernels
