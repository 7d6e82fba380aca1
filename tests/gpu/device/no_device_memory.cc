#include <stdexcept>

#include "tests/gpu/device/device_memory.h"

namespace coat::gpu_test {
namespace {

[[noreturn]] void no_device() { throw std::runtime_error("this test program was built without CUDA"); }

}  // namespace

int device_count() { return 0; }
std::string device_description() { return "no CUDA device (built without CUDA)"; }

DeviceStream::DeviceStream() { no_device(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::wait() { no_device(); }

DeviceBytes::DeviceBytes(std::size_t bytes, std::size_t misalignment)
    : bytes_(bytes), misalignment_(misalignment) {
  no_device();
}
DeviceBytes::~DeviceBytes() = default;
void DeviceBytes::upload(const void*, std::size_t, std::size_t) { no_device(); }
void DeviceBytes::download(void*, std::size_t, std::size_t) const { no_device(); }
void DeviceBytes::fill(std::uint8_t) { no_device(); }
bool DeviceBytes::guards_are_intact() const { no_device(); }

}  // namespace coat::gpu_test
