#include "tests/gpu/device/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>

namespace coat::gpu_test {
namespace {

constexpr std::size_t kGuard = 512;
constexpr std::uint8_t kGuardByte = 0xC3;
constexpr std::uint8_t kPoison = 0xA5;

void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

bool all_are(const std::vector<std::uint8_t>& bytes, std::uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::uint8_t byte) { return byte == value; });
}

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string device_description() {
  if (device_count() == 0) return "no CUDA device";
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  require(cudaGetDeviceProperties(&properties, 0));
  require(cudaDriverGetVersion(&driver));
  require(cudaRuntimeGetVersion(&runtime));
  return std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors, " + std::to_string(properties.totalGlobalMem >> 20) + " MiB, driver for CUDA " +
         std::to_string(driver) + ", runtime " + std::to_string(runtime);
}

DeviceStream::DeviceStream() {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_ = stream;
}

DeviceStream::~DeviceStream() { cudaStreamDestroy(static_cast<cudaStream_t>(handle_)); }

void DeviceStream::wait() { require(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_))); }

DeviceBytes::DeviceBytes(std::size_t bytes, std::size_t misalignment)
    : bytes_(bytes), misalignment_(misalignment) {
  const std::size_t whole = kGuard + misalignment + bytes + kGuard;
  require(cudaMalloc(reinterpret_cast<void**>(&block_), whole));
  require(cudaMemset(block_, kGuardByte, whole));
  data_ = block_ + kGuard + misalignment;
  fill(kPoison);
}

DeviceBytes::~DeviceBytes() { cudaFree(block_); }

void DeviceBytes::upload(const void* host, std::size_t bytes, std::size_t offset) {
  require(cudaMemcpy(data_ + offset, host, bytes, cudaMemcpyHostToDevice));
}

void DeviceBytes::download(void* host, std::size_t bytes, std::size_t offset) const {
  require(cudaDeviceSynchronize());
  require(cudaMemcpy(host, data_ + offset, bytes, cudaMemcpyDeviceToHost));
}

void DeviceBytes::fill(std::uint8_t value) {
  require(cudaMemset(data_, value, bytes_));
  require(cudaDeviceSynchronize());
}

bool DeviceBytes::guards_are_intact() const {
  std::vector<std::uint8_t> before(kGuard + misalignment_), after(kGuard);
  require(cudaDeviceSynchronize());
  require(cudaMemcpy(before.data(), block_, before.size(), cudaMemcpyDeviceToHost));
  require(cudaMemcpy(after.data(), data_ + bytes_, after.size(), cudaMemcpyDeviceToHost));
  return all_are(before, kGuardByte) && all_are(after, kGuardByte);
}

}  // namespace coat::gpu_test
