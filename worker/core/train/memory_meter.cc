#include "worker/core/train/memory_meter.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "worker/core/base/error.h"
#include "worker/core/base/tracked_allocator.h"

namespace coat::train {
namespace {

void require_cpu(c10::Device device) {
  if (!device.is_cpu())
    throw UnsupportedError("the memory of device " + device.str() + " is not measured yet");
}

}  // namespace

MemoryReading read_memory(c10::Device device) {
  require_cpu(device);
  MemoryReading reading{.allocated = cpu_memory::current(), .peak = cpu_memory::peak()};
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  if (file >> total_pages >> resident_pages) reading.reserved = resident_pages * ::sysconf(_SC_PAGESIZE);
  return reading;
}

std::int64_t device_memory_bytes(c10::Device device) {
  require_cpu(device);
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace coat::train
