// CUDA memory and streams through libtorch, whose allocator then knows every byte of the job. In a build
// without CUDA the same header is served by no_cuda_device.cc: for the CPU nothing happens, for anything else
// UnsupportedError.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/Device.h>

namespace coat::cuda_device {

struct Memory {
  std::int64_t allocated = 0;  // by live tensors and the kernels' scratch
  std::int64_t reserved = 0;   // taken from the device: that, and what the allocator keeps for later
  std::int64_t peak = 0;       // the largest `allocated` so far
};

// Starts CUDA and makes `device` the calling thread's current one. SpecError of field resources.device where
// the machine has no such device. For a CPU: nothing.
void use(c10::Device device);

// The cudaStream_t that libtorch's own operations of this thread run on; nullptr for a CPU.
void* current_stream(c10::Device device);

Memory memory(c10::Device device);
void reset_peak(c10::Device device);
std::int64_t total_bytes(c10::Device device);

// From now on an allocation that would take more than `bytes` from the device is an out-of-memory error; the
// allocator gives back what it keeps for later before it fails. At most the whole device.
void set_limit(c10::Device device, std::int64_t bytes);

// Memory of the current device, counted like a tensor's. OutOfDeviceMemoryError where there is none.
// release() does not wait: the caller sees to it that the device no longer uses the memory.
void* allocate(std::size_t bytes);
void release(void* data);

}  // namespace coat::cuda_device
