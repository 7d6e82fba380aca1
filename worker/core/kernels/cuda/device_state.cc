#include "worker/core/kernels/cuda/device_state.h"

#include <array>
#include <mutex>
#include <stdexcept>
#include <string>

#include "worker/core/base/cuda_device.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/quant/moment_table.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kMaxDevices = 64;

void* copy_to_device(const void* host, std::size_t bytes, const char* operation) {
  void* data = cuda_device::allocate(bytes);
  check(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice), operation);
  return data;
}

}  // namespace

void* DeviceBuffer::at_least(std::size_t bytes, const char* operation) {
  if (bytes <= bytes_) return data_;
  if (data_ != nullptr) {
    check(cudaDeviceSynchronize(), operation);
    cuda_device::release(data_);
  }
  data_ = nullptr;
  bytes_ = 0;
  data_ = cuda_device::allocate(bytes);
  bytes_ = bytes;
  return data_;
}

DeviceState& DeviceState::current() {
  static std::mutex mutex;
  static std::array<DeviceState*, kMaxDevices> states{};
  int device = 0;
  check(cudaGetDevice(&device), "choose the device");
  if (device >= kMaxDevices)
    throw std::logic_error("device number " + std::to_string(device) + " is too large");
  const std::lock_guard lock(mutex);
  DeviceState*& state = states[static_cast<std::size_t>(device)];
  if (state == nullptr) state = new DeviceState();
  return *state;
}

DeviceState::DeviceState() {
  int device = 0;
  check(cudaGetDevice(&device), "choose the device");
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device), "read the device");
}

cublasLtHandle_t DeviceState::blas() {
  if (blas_ == nullptr) check(cublasLtCreate(&blas_), "gemm");
  return blas_;
}

ExpansionTables DeviceState::expansion() {
  if (expansion_.values == nullptr) {
    const std::vector<float>& values = MomentTable::of(MomentCode::kE4M3).all_values();
    const std::vector<float>& boundaries = MomentTable::of(MomentCode::kE4M3).all_boundaries();
    const std::size_t bytes = values.size() * sizeof(float);
    expansion_.boundaries = static_cast<const float*>(copy_to_device(boundaries.data(), bytes, "adamw"));
    expansion_.values = static_cast<const float*>(copy_to_device(values.data(), bytes, "adamw"));
  }
  return expansion_;
}

const double* DeviceState::row_limits(const MomentFormat& format) {
  for (const Limits& known : limits_) {
    if (known.code == format.code && known.bound == format.range_bound) return known.table;
  }
  const RowChoice choice(format);
  const void* table = copy_to_device(choice.limits().data(), kMomentRows * sizeof(double), "adamw");
  limits_.push_back({format.code, format.range_bound, static_cast<const double*>(table)});
  return limits_.back().table;
}

}  // namespace coat::kernels::cuda
