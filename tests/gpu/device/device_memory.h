// Device memory for tests, with nothing of CUDA in the header. In a build without CUDA, no_device_memory.cc
// serves it: there is no device then, and every test is skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coat::gpu_test {

int device_count();
// Name, memory and driver of the first device, for the result file.
std::string device_description();

// A queue beside the default one, which does not wait for it.
class DeviceStream {
 public:
  DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream();
  void* handle() const { return handle_; }
  void wait();

 private:
  void* handle_ = nullptr;
};

// Poisoned at first, with guards before and after that a kernel must leave alone. `misalignment` bytes are
// added to the address, which is else a multiple of 256.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes, std::size_t misalignment = 0);
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes();

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  void upload(const void* host, std::size_t bytes, std::size_t offset = 0);
  void download(void* host, std::size_t bytes, std::size_t offset = 0) const;  // waits for the device
  void fill(std::uint8_t value);
  bool guards_are_intact() const;

 private:
  std::size_t bytes_, misalignment_;
  char* block_ = nullptr;
  char* data_ = nullptr;
};

}  // namespace coat::gpu_test
