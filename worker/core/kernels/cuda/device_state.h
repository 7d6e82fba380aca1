// What the kernel set owns on one device: scratch memory and constant tables. Made on first use, kept to the
// program's end (CUDA may be gone before static destructors run). One caller at a time, all on one stream, as
// the interface demands.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/core/quant/moment_format.h"

namespace coat {
struct OctaveTables;
}  // namespace coat

namespace coat::kernels::cuda {

// Device memory that grows and never shrinks. Growing waits for the device.
class DeviceBuffer {
 public:
  void* at_least(std::size_t bytes, const char* operation);
  template <typename T>
  T* elements(std::int64_t count, const char* operation) {
    return static_cast<T*>(at_least(static_cast<std::size_t>(count) * sizeof(T), operation));
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// MomentTable on the device.
struct MomentTables {
  const float* values = nullptr;
  const float* boundaries = nullptr;
  const double* exponents = nullptr;  // of the rows
};

class DeviceState {
 public:
  // Of the current device.
  static DeviceState& current();

  static constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;  // NVIDIA's advice for Hopper
  // An FP32 result that waits for its rounding: little enough that it never leaves the second-level cache.
  static constexpr std::size_t kGemmStagingBytes = std::size_t{32} << 20;

  cublasLtHandle_t blas();
  void* gemm_workspace() { return gemm_workspace_.at_least(kGemmWorkspaceBytes, "gemm"); }
  float* gemm_staging(std::int64_t elements) { return gemm_staging_.elements<float>(elements, "gemm"); }
  // Two places of 16 bytes, for scales that do not lie on such a border.
  float* gemm_scales() { return gemm_scales_.elements<float>(8, "gemm"); }
  // Operands that the product needs in another form: padded or decoded.
  void* gemm_operand(int which, std::size_t bytes) { return gemm_operands_[which].at_least(bytes, "gemm"); }

  DeviceBuffer& partial_sums() { return partial_sums_; }
  DeviceBuffer& tensor_table() { return tensor_table_; }
  // One value, for a quantize that must find the maximum itself.
  float* maximum() { return maximum_.elements<float>(4, "amax"); }

  MomentTables moment_tables(MomentCode code);
  // The 256 FP64 limits of RowChoice(format).
  const double* row_limits(const MomentFormat& format);
  // Of octave codes, by their largest magnitude code: 127 or 255.
  const OctaveTables* octave_tables(int top);
  const float* octave_reach(int top);

  int multiprocessors() const { return multiprocessors_; }

 private:
  DeviceState();

  int multiprocessors_ = 0;
  cublasLtHandle_t blas_ = nullptr;
  DeviceBuffer gemm_workspace_, gemm_staging_, gemm_operands_[2], gemm_scales_, partial_sums_, tensor_table_,
      maximum_;
  struct Tables {
    MomentCode code;
    MomentTables tables;
  };
  std::vector<Tables> moment_tables_;
  struct Limits {
    MomentCode code;
    double bound;
    const double* table;
  };
  std::vector<Limits> limits_;
  struct Octaves {
    const OctaveTables* tables = nullptr;
    const float* reach = nullptr;
  };
  const Octaves& octaves(int top);
  Octaves octaves_[2];
};

}  // namespace coat::kernels::cuda
