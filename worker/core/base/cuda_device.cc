#include "worker/core/base/cuda_device.h"

#include <algorithm>
#include <string>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/core/base/error.h"

namespace coat::cuda_device {
namespace {

using c10::CachingAllocator::StatType;
constexpr auto kAll = static_cast<std::size_t>(StatType::AGGREGATE);

void start() { at::globalContext().lazyInitDevice(c10::DeviceType::CUDA); }

}  // namespace

void use(c10::Device device) {
  if (device.is_cpu()) return;
  const int count = c10::cuda::device_count();
  if (device.index() >= count) {
    throw SpecError("resources.device",
                    "the trainer was given " + device.str() + ", and this machine shows " +
                        std::to_string(count) + " CUDA device" + (count == 1 ? "" : "s"),
                    count == 0 ? "check the driver with nvidia-smi, or write resources.device: cpu"
                               : "give it --device cuda:0 to cuda:" + std::to_string(count - 1));
  }
  start();
  c10::cuda::set_device(device.index());
}

void* current_stream(c10::Device device) {
  return device.is_cpu() ? nullptr : c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

Memory memory(c10::Device device) {
  start();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return {.allocated = stats.allocated_bytes[kAll].current,
          .reserved = stats.reserved_bytes[kAll].current,
          .peak = stats.allocated_bytes[kAll].peak};
}

void reset_peak(c10::Device device) {
  start();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
}

std::int64_t total_bytes(c10::Device device) {
  use(device);
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(total);
}

void set_limit(c10::Device device, std::int64_t bytes) {
  const double share = static_cast<double>(bytes) / static_cast<double>(total_bytes(device));
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(1.0, share), device.index());
}

void* allocate(std::size_t bytes) {
  start();
  try {
    return c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
  } catch (const c10::OutOfMemoryError& error) {
    throw OutOfDeviceMemoryError(error.what_without_backtrace());
  }
}

void release(void* data) { c10::cuda::CUDACachingAllocator::raw_delete(data); }

}  // namespace coat::cuda_device
