// Products: brings operands into a form that cuBLASLt takes, and its result into the format that was asked
// for; E4M3 into groups is made by group_product.h from the same form.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "worker/core/kernels/cuda/blas_product.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/gemm_finish.h"
#include "worker/core/kernels/cuda/group_product.h"
#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels::cuda {
namespace {

constexpr std::int64_t kFp8Unit = 16;   // FP8 tensor cores: K and N in multiples of it, 16-byte addresses
constexpr std::int64_t kRowUnit = 128;  // rows of a staged product

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

bool on_border(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

struct Sizes {
  std::int64_t outer, summed;
};

Sizes sizes_of(const ConstMatrix& matrix, Layout layout) {
  if (layout == Layout::kKMajor) return {matrix.rows, matrix.cols};
  return {matrix.cols, matrix.rows};
}

bool is_fp8(const ConstMatrix& matrix) { return bytes_of(matrix.format.format) == 1; }

// FP8 tensor cores: one scale a tensor, the summed dimension contiguous, and no E5M2 on both sides.
bool fits_fp8(const GemmArgs& args) {
  const auto fits = [](const ConstMatrix& matrix, Layout layout) {
    const bool one_scale =
        matrix.format.scaling == Scaling::kNone ||
        (matrix.format.scaling == Scaling::kTensor && matrix.format.scale_format != ScaleFormat::kE8M0);
    return is_fp8(matrix) && one_scale && layout == Layout::kKMajor;
  };
  return fits(args.a, args.a_layout) && fits(args.b, args.b_layout) &&
         (args.a.format.format == Format::kE4M3 || args.b.format.format == Format::kE4M3);
}

bool is_plain(const ConstMatrix& matrix, Format format) {
  return matrix.format.format == format && matrix.format.scaling == Scaling::kNone;
}

BlasOperand as_it_is(const ConstMatrix& matrix, Layout layout) {
  return {matrix.data, nullptr, matrix.format.format, layout == Layout::kKMajor, matrix.cols};
}

// The operand as FP32 in scratch memory, unless it is that already.
BlasOperand as_fp32(const ConstMatrix& matrix, Layout layout, int which, cudaStream_t stream) {
  if (is_plain(matrix, Format::kFp32)) return as_it_is(matrix, layout);
  const std::int64_t bytes = matrix.rows * matrix.cols * bytes_of(Format::kFp32);
  void* scratch = DeviceState::current().gemm_operand(which, static_cast<std::size_t>(bytes));
  const Matrix decoded{scratch, nullptr, {Format::kFp32, Scaling::kNone}, matrix.rows, matrix.cols};
  dequantize(matrix, decoded, stream);
  return as_it_is(decoded, layout);
}

// The tensor's scale as the library reads it: FP32, on a border of 16 bytes. A BF16 number is the upper half
// of an FP32 one.
const float* fp32_scale(const ConstMatrix& matrix, int which, cudaStream_t stream) {
  const bool wide = matrix.format.scale_format == ScaleFormat::kFp32;
  if (wide && on_border(matrix.scale)) return static_cast<const float*>(matrix.scale);
  float* aligned = DeviceState::current().gemm_scales() + 4 * which;
  const std::size_t bytes = wide ? sizeof(float) : sizeof(std::uint16_t);
  if (!wide) check(cudaMemsetAsync(aligned, 0, sizeof(float), stream), "gemm");
  char* target = reinterpret_cast<char*>(aligned) + sizeof(float) - bytes;
  check(cudaMemcpyAsync(target, matrix.scale, bytes, cudaMemcpyDeviceToDevice, stream), "gemm");
  return aligned;
}

// The operand's codes with rows of whole 16 bytes and `rows` of them; what is added is zero.
BlasOperand as_padded_fp8(const ConstMatrix& matrix, std::int64_t rows, int which, cudaStream_t stream) {
  BlasOperand operand = as_it_is(matrix, Layout::kKMajor);
  DeviceState& state = DeviceState::current();
  const std::int64_t cols = round_up(matrix.cols, kFp8Unit);
  if (rows != matrix.rows || cols != matrix.cols || !on_border(matrix.data)) {
    const auto row_bytes = static_cast<std::size_t>(cols);
    void* scratch = state.gemm_operand(which, row_bytes * static_cast<std::size_t>(rows));
    check(cudaMemsetAsync(scratch, 0, row_bytes * static_cast<std::size_t>(rows), stream), "gemm");
    const auto width = static_cast<std::size_t>(matrix.cols);
    check(cudaMemcpy2DAsync(scratch, row_bytes, matrix.data, width, width,
                            static_cast<std::size_t>(matrix.rows), cudaMemcpyDeviceToDevice, stream),
          "gemm");
    operand.data = scratch;
    operand.stride = cols;
  }
  if (matrix.format.scaling == Scaling::kTensor) operand.scale = fp32_scale(matrix, which, stream);
  return operand;
}

// Without out; n and k are those of the operands with their padding.
BlasProduct prepare(const GemmArgs& args, const Sizes& a, const Sizes& b, cudaStream_t stream) {
  BlasProduct product;
  product.m = a.outer;
  product.n = b.outer;
  product.k = a.summed;
  if (product.k == 0) return product;
  if (fits_fp8(args)) {
    product.n = round_up(b.outer, kFp8Unit);
    product.k = round_up(a.summed, kFp8Unit);
    product.a = as_padded_fp8(args.a, a.outer, 0, stream);
    product.b = as_padded_fp8(args.b, product.n, 1, stream);
  } else if (is_plain(args.a, Format::kBf16) && is_plain(args.b, Format::kBf16)) {
    product.a = as_it_is(args.a, args.a_layout);
    product.b = as_it_is(args.b, args.b_layout);
  } else {
    product.a = as_fp32(args.a, args.a_layout, 0, stream);
    product.b = as_fp32(args.b, args.b_layout, 1, stream);
  }
  return product;
}

bool writes_directly(const GemmArgs& args, const BlasProduct& product, const DeviceMatrix& out) {
  if (args.round_product && (args.accumulate || out.format == Format::kFp32)) return false;
  if (out.scaling != Scaling::kNone || product.n != out.cols) return false;
  if (out.format == Format::kFp32) return bytes_of(product.a.format) != 1 || on_border(out.data);
  if (out.format == Format::kBf16) {
    return product.a.format != Format::kFp32 && (bytes_of(product.a.format) != 1 || on_border(out.data));
  }
  return false;
}

// The rows of a matrix from `first` on.
DeviceMatrix rows_of(DeviceMatrix matrix, std::int64_t first, std::int64_t count) {
  matrix.data = static_cast<char*>(matrix.data) + first * matrix.cols * bytes_of(matrix.format);
  if (matrix.scaling == Scaling::kGroup) {
    matrix.scale =
        static_cast<char*>(matrix.scale) + first * matrix.groups_per_row * bytes_of(matrix.scale_format);
  }
  matrix.rows = count;
  return matrix;
}

// Through an FP32 result in scratch memory of bounded size, some rows at a time.
void run_staged(BlasProduct product, const DeviceMatrix& out, const FinishOptions& options,
                cudaStream_t stream) {
  DeviceState& state = DeviceState::current();
  constexpr auto kStaged = static_cast<std::int64_t>(DeviceState::kGemmStagingBytes / sizeof(float));
  const std::int64_t rows = std::max(kRowUnit, kStaged / product.n / kRowUnit * kRowUnit);
  const std::int64_t row_stride = product.a.summed_is_contiguous ? product.a.stride : 1;
  const std::int64_t row_bytes = row_stride * bytes_of(product.a.format);
  product.out_format = Format::kFp32;
  product.out_stride = product.n;
  for (std::int64_t first = 0; first < out.rows; first += rows) {
    product.m = std::min(rows, out.rows - first);
    float* staged = state.gemm_staging(product.m * product.n);
    product.out = staged;
    if (product.k > 0) {
      run_blas_product(product, stream);
    } else {
      check(
          cudaMemsetAsync(staged, 0, static_cast<std::size_t>(product.m * product.n) * sizeof(float), stream),
          "gemm");
    }
    finish_product(staged, product.n, rows_of(out, first, product.m), options, stream);
    product.a.data = static_cast<const char*>(product.a.data) + rows * row_bytes;
  }
}

void require_consistent(const GemmArgs& args, const Sizes& a, const Sizes& b) {
  if (args.out.rows != a.outer || args.out.cols != b.outer) {
    throw std::logic_error("gemm: out is [" + std::to_string(args.out.rows) + ", " +
                           std::to_string(args.out.cols) + "] instead of [" + std::to_string(a.outer) + ", " +
                           std::to_string(b.outer) + "]");
  }
  if (a.summed != b.summed) {
    throw std::logic_error("gemm: a sums over " + std::to_string(a.summed) + " and b over " +
                           std::to_string(b.summed));
  }
  if ((args.accumulate || args.round_product) && bytes_of(args.out.format.format) == 1) {
    throw std::logic_error("gemm: only FP32 and BF16 outputs accumulate or are rounded twice");
  }
}

}  // namespace

void gemm(const GemmArgs& args, cudaStream_t stream) {
  input(args.a, "gemm");
  input(args.b, "gemm");
  const DeviceMatrix out = one_pass_output(args.out, "gemm");
  const Sizes a = sizes_of(args.a, args.a_layout), b = sizes_of(args.b, args.b_layout);
  require_consistent(args, a, b);
  if (out.rows == 0 || out.cols == 0 || (a.summed == 0 && args.accumulate)) return;
  BlasProduct product = prepare(args, a, b, stream);
  if (suits_group_product(product, out)) return run_group_product(product, out, stream);
  if (product.k == 0 || !writes_directly(args, product, out))
    return run_staged(product, out, {args.accumulate, args.round_product}, stream);
  product.out = out.data;
  product.out_format = out.format;
  product.out_stride = out.cols;
  product.accumulate = args.accumulate;
  run_blas_product(product, stream);
}

}  // namespace coat::kernels::cuda
