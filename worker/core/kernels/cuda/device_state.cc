#include "worker/core/kernels/cuda/device_state.h"

#include <array>
#include <mutex>
#include <stdexcept>
#include <string>

#include "worker/core/base/cuda_device.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/quant/moment_table.h"
#include "worker/core/quant/octave_tables.h"

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

MomentTables DeviceState::moment_tables(MomentCode code) {
  for (const Tables& known : moment_tables_) {
    if (known.code == code) return known.tables;
  }
  const MomentTable& table = MomentTable::of(code);
  const auto copy = [](const std::vector<float>& rows) {
    return static_cast<const float*>(copy_to_device(rows.data(), rows.size() * sizeof(float), "adamw"));
  };
  std::array<double, kMomentRows> exponents;
  for (int row = 0; row < kMomentRows; ++row) exponents[static_cast<std::size_t>(row)] = table.exponent(row);
  const void* k = copy_to_device(exponents.data(), sizeof(exponents), "adamw");
  moment_tables_.push_back(
      {code, {copy(table.all_values()), copy(table.all_boundaries()), static_cast<const double*>(k)}});
  return moment_tables_.back().tables;
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

const DeviceState::Octaves& DeviceState::octaves(int top) {
  Octaves& octaves = octaves_[top == 127 ? 0 : 1];
  if (octaves.tables == nullptr) {
    const OctaveTables tables = OctaveTables::of(top);
    const auto& reach = OctaveRows::of(top).reach();
    octaves = {static_cast<const OctaveTables*>(copy_to_device(&tables, sizeof(tables), "adamw")),
               static_cast<const float*>(copy_to_device(reach.data(), sizeof(reach), "adamw"))};
  }
  return octaves;
}

const OctaveTables* DeviceState::octave_tables(int top) { return octaves(top).tables; }
const float* DeviceState::octave_reach(int top) { return octaves(top).reach; }

}  // namespace coat::kernels::cuda
