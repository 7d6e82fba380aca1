// What a device holds right now.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace coat::train {

struct MemoryReading {
  std::int64_t allocated = 0;  // by live tensors
  std::int64_t reserved = 0;   // taken from the device; on a CPU, the resident memory of the process
  std::int64_t peak = 0;       // the largest `allocated` so far
};

// On a CPU `allocated` and `peak` need cpu_memory::install() before the first tensor.
MemoryReading read_memory(c10::Device device);

// All the memory of the device, in bytes.
std::int64_t device_memory_bytes(c10::Device device);

// An allocation far beyond `bytes`, which the ledger has admitted, is an OutOfDeviceMemoryError or libtorch's
// own out-of-memory error. 0: no limit.
void limit_memory(c10::Device device, std::int64_t bytes);

}  // namespace coat::train
