#include "worker/core/train/memory_meter.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "worker/core/base/cuda_device.h"
#include "worker/core/base/tracked_allocator.h"

namespace coat::train {
namespace {

// The ledger is held to 2 % of what the allocator sees, so the limit stands so much above the admitted bytes.
constexpr std::int64_t kLedgerTolerance = 50;

}  // namespace

MemoryReading read_memory(c10::Device device) {
  if (!device.is_cpu()) {
    const cuda_device::Memory memory = cuda_device::memory(device);
    return {.allocated = memory.allocated, .reserved = memory.reserved, .peak = memory.peak};
  }
  MemoryReading reading{.allocated = cpu_memory::current(), .peak = cpu_memory::peak()};
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  if (file >> total_pages >> resident_pages) reading.reserved = resident_pages * ::sysconf(_SC_PAGESIZE);
  return reading;
}

std::int64_t device_memory_bytes(c10::Device device) {
  if (!device.is_cpu()) return cuda_device::total_bytes(device);
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

void limit_memory(c10::Device device, std::int64_t bytes) {
  const std::int64_t limit = bytes + bytes / kLedgerTolerance;
  if (device.is_cpu()) return cpu_memory::set_limit(limit);
  if (limit > 0) cuda_device::set_limit(device, limit);
}

}  // namespace coat::train
