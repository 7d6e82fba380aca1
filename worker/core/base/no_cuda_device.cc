#include "worker/core/base/cuda_device.h"
#include "worker/core/base/error.h"

namespace coat::cuda_device {
namespace {

[[noreturn]] void unsupported() {
  throw UnsupportedError(
      "this coat-trainer was built without CUDA; build with `cmake --preset cuda`, or set "
      "resources.device: cpu");
}

}  // namespace

void use(c10::Device device) {
  if (!device.is_cpu()) unsupported();
}
void* current_stream(c10::Device device) {
  use(device);
  return nullptr;
}
Memory memory(c10::Device) { unsupported(); }
void reset_peak(c10::Device) { unsupported(); }
std::int64_t total_bytes(c10::Device) { unsupported(); }
void set_limit(c10::Device, std::int64_t) { unsupported(); }
void* allocate(std::size_t) { unsupported(); }
void release(void*) { unsupported(); }

}  // namespace coat::cuda_device
