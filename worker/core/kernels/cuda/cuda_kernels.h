// The CUDA versions of the operations, for sm_90a. In a build without CUDA the same header is served by
// no_cuda.cc.
#pragma once

#include "worker/core/kernels/api/kernels.h"

namespace coat::kernels {

// Throws UnsupportedError in a build without CUDA. Lives for the whole program.
const Kernels& cuda_kernels();

}  // namespace coat::kernels
