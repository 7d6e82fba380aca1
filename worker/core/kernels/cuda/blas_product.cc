#include "worker/core/kernels/cuda/blas_product.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"

namespace coat::kernels::cuda {
namespace {

constexpr std::uint32_t kMostAlignment = 256;

cudaDataType_t data_type(Format format) {
  switch (format) {
    case Format::kFp32:
      return CUDA_R_32F;
    case Format::kBf16:
      return CUDA_R_16BF;
    case Format::kE4M3:
      return CUDA_R_8F_E4M3;
    case Format::kE5M2:
      return CUDA_R_8F_E5M2;
  }
  throw std::logic_error("unknown number format");
}

std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  std::uint32_t alignment = kMostAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// cuBLASLt is column-major: it computes outᵀ = b aᵀ, so that its first operand is our b.
class Description {
 public:
  explicit Description(const BlasProduct& p) {
    check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "gemm");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.summed_is_contiguous ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.summed_is_contiguous ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
    if (p.b.scale != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b.scale);
    if (p.a.scale != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a.scale);
    first_ = operand_layout(p.b, p.n, p.k);
    second_ = operand_layout(p.a, p.m, p.k);
    out_ = layout(p.out_format, p.n, p.m, p.out_stride);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() {
    cublasLtMatrixLayoutDestroy(out_);
    cublasLtMatrixLayoutDestroy(second_);
    cublasLtMatrixLayoutDestroy(first_);
    cublasLtMatmulDescDestroy(operation_);
  }

  cublasLtMatmulAlgo_t choose(const BlasProduct& p) const;
  void run(const BlasProduct& p, const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const;

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value), "gemm");
  }
  static cublasLtMatrixLayout_t layout(Format format, std::int64_t rows, std::int64_t cols,
                                       std::int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, data_type(format), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(cols), stride),
          "gemm");
    return made;
  }
  static cublasLtMatrixLayout_t operand_layout(const BlasOperand& operand, std::int64_t outer,
                                               std::int64_t summed) {
    return operand.summed_is_contiguous ? layout(operand.format, summed, outer, operand.stride)
                                        : layout(operand.format, outer, summed, operand.stride);
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, out_ = nullptr;
};

class Preference {
 public:
  Preference() { check(cublasLtMatmulPreferenceCreate(&preference_), "gemm"); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value), "gemm");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

cublasLtMatmulAlgo_t Description::choose(const BlasProduct& p) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, DeviceState::kGemmWorkspaceBytes);
  // Parts of a K that is split between blocks are added in FP32, never in the output's own format.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.out));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.out));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(DeviceState::current().blas(), operation_, first_, second_, out_, out_,
                                     preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) {
    throw UnsupportedError("gemm: cuBLASLt has no algorithm for [" + std::to_string(p.m) + ", " +
                           std::to_string(p.k) + "] " + name_of(p.a.format) + " by [" + std::to_string(p.n) +
                           ", " + std::to_string(p.k) + "] " + name_of(p.b.format) + " into " +
                           name_of(p.out_format));
  }
  check(status, "gemm");
  return found.algo;
}

void Description::run(const BlasProduct& p, const cublasLtMatmulAlgo_t& algorithm,
                      cudaStream_t stream) const {
  DeviceState& state = DeviceState::current();
  const float alpha = 1.0f, beta = p.accumulate ? 1.0f : 0.0f;
  check(cublasLtMatmul(state.blas(), operation_, &alpha, p.b.data, first_, p.a.data, second_, &beta, p.out,
                       out_, p.out, out_, &algorithm, state.gemm_workspace(),
                       DeviceState::kGemmWorkspaceBytes, stream),
        "gemm");
}

// What an algorithm depends on, beside the scales' values and the addresses themselves.
using Key = std::array<std::int64_t, 17>;

Key key_of(const BlasProduct& p) {
  int device = 0;
  check(cudaGetDevice(&device), "gemm");
  return {device,
          p.m,
          p.n,
          p.k,
          static_cast<std::int64_t>(p.a.format),
          static_cast<std::int64_t>(p.b.format),
          static_cast<std::int64_t>(p.out_format),
          p.a.summed_is_contiguous,
          p.b.summed_is_contiguous,
          p.a.stride,
          p.b.stride,
          p.out_stride,
          p.a.scale != nullptr,
          p.b.scale != nullptr,
          alignment_of(p.a.data),
          alignment_of(p.b.data),
          alignment_of(p.out)};
}

}  // namespace

void run_blas_product(const BlasProduct& product, cudaStream_t stream) {
  static auto& chosen = *new std::map<Key, cublasLtMatmulAlgo_t>();
  const Description description(product);
  const Key key = key_of(product);
  auto known = chosen.find(key);
  if (known == chosen.end()) known = chosen.emplace(key, description.choose(product)).first;
  description.run(product, known->second, stream);
}

}  // namespace coat::kernels::cuda
