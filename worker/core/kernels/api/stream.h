// The execution queue of an operation.
#pragma once

namespace coat::kernels {

// A cudaStream_t on CUDA, unused on the CPU.
struct Stream {
  void* handle = nullptr;
};

}  // namespace coat::kernels
