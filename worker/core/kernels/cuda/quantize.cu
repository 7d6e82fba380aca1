// Format conversions and maxima.
#include <stdexcept>
#include <type_traits>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"
#include "worker/core/kernels/cuda/transpose.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Span, typename In>
__global__ void __launch_bounds__(kThreads) amax_kernel(In in, Span cover, float* out) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    largest = max(largest, largest_magnitude(load(in, row, col)));
  });
  join_amax(out, largest);
}

__global__ void tensor_scale_kernel(const float* amax, DeviceMatrix out, DeviceMatrix twin) {
  const float scale = scale_from_amax(*amax, out.largest, out.rule.added);
  write_scale(out, 0, scale);
  if (twin.data != nullptr) write_scale(twin, 0, scale);
}

template <typename Span, typename In, typename Out>
__global__ void __launch_bounds__(kThreads) convert_kernel(In in, Out out, Span cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    store(out, row, col, load(in, row, col), cover.lanes_per_group);
  });
}

// One block a row or block of `out`: finds and stores its scale.
__global__ void __launch_bounds__(kThreads) region_scales_kernel(DeviceMatrix in, DeviceMatrix out) {
  const std::int64_t width = out.scaling == Scaling::kRow ? out.cols : out.group;
  const std::int64_t first_row = blockIdx.x / out.groups_per_row * out.rows_per_scale,
                     first_col = blockIdx.x % out.groups_per_row * width;
  const std::int64_t chunks = (width + kChunk - 1) / kChunk;
  std::uint32_t largest = 0;
  for (std::int64_t i = threadIdx.x; i < chunks * out.rows_per_scale; i += kThreads) {
    const Values v = load(in, first_row + i / chunks, first_col + i % chunks * kChunk);
    largest = max(largest, largest_magnitude(v));
  }
  largest = block_largest(largest);
  if (threadIdx.x != 0) return;
  write_scale(out, blockIdx.x, scale_from_amax(__uint_as_float(largest), out.largest, out.rule.added));
}

__global__ void __launch_bounds__(kThreads) transpose_scales_kernel(DeviceMatrix out, DeviceMatrix twin) {
  const std::int64_t across = out.groups_per_row, down = twin.groups_per_row;
  for (std::int64_t i = threadIdx.x; i < across * down; i += kThreads) {
    write_scale(twin, i % across * down + i / across, scale_at(out, i));
  }
}

__global__ void __launch_bounds__(kThreads)
    convert_stochastically_kernel(DeviceMatrix in, DeviceMatrix out, Stochastically round, Cover cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    const Values v = load(in, row, col);
    const float scale = scale_for_codes(out, row, col, v, cover.lanes_per_group);
    if (row < out.rows) store_codes(out, row, col, round(out.format, v, scale, row * out.cols + col));
  });
}

// Calls run(typed matrix) for the storage that `m` has, as one row; false where no type fits.
template <typename... Types, typename Run>
bool with_type(const DeviceMatrix& m, Run run) {
  const auto try_type = [&]<typename Type>(std::type_identity<Type>) {
    if (!fits(m, Type::format, Type::scaling)) return false;
    run(Type(as_one_row(m)));
    return true;
  };
  return (try_type(std::type_identity<Types>{}) || ...);
}

void convert(const DeviceMatrix& in, const DeviceMatrix& out, const char* operation, cudaStream_t stream) {
  if (in.rows == 0 || in.cols == 0) return;
  const Cover whole = cover(in.rows, in.cols, out);
  const int blocks = blocks_for(whole.total(), kThreads);
  bool done = false;
  with_type<Bf16Matrix, Fp32Matrix, GroupedE4M3>(in, [&](const auto& typed_in) {
    done = with_type<Bf16Matrix, Fp32Matrix, GroupedE4M3, TensorE4M3, TensorE5M2>(
        out, [&](const auto& typed_out) {
          convert_kernel<<<blocks, kThreads, 0, stream>>>(typed_in, typed_out, one_row(in));
        });
  });
  if (!done) convert_kernel<<<blocks, kThreads, 0, stream>>>(in, out, whole);
  check_launch(operation);
}

void convert_stochastically(const DeviceMatrix& in, const DeviceMatrix& out, const PhiloxStream& random,
                            cudaStream_t stream) {
  const Cover whole = cover(in.rows, in.cols, out);
  convert_stochastically_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(
      in, out, Stochastically{random}, whole);
  check_launch("quantize");
}

// Row-major and transposed codes with one scale for values up to *amax; false where transpose_blocks does not
// take these.
bool quantize_blocks(const DeviceMatrix& in, const DeviceMatrix& out, const DeviceMatrix& transposed,
                     const float* amax, cudaStream_t stream) {
  if (!transposes_in_blocks(out, transposed)) return false;
  if (is_bf16(in)) {
    transpose_blocks(MatrixSource<Bf16Matrix>{Bf16Matrix(in)}, out, transposed, amax, "quantize", stream);
  } else if (is_fp32(in)) {
    transpose_blocks(MatrixSource<Fp32Matrix>{Fp32Matrix(in)}, out, transposed, amax, "quantize", stream);
  } else {
    return false;
  }
  return true;
}

void find_amax(const DeviceMatrix& in, float* out, const char* operation, cudaStream_t stream) {
  if (in.rows == 0 || in.cols == 0) return clear_amax(out, operation, stream);
  const Cover whole = cover(in.rows, in.cols, {});
  const int blocks = blocks_for(whole.total(), kThreads);
  const bool done = with_type<Bf16Matrix, Fp32Matrix>(
      in, [&](const auto& typed) { amax_kernel<<<blocks, kThreads, 0, stream>>>(typed, one_row(in), out); });
  if (!done) amax_kernel<<<blocks, kThreads, 0, stream>>>(in, whole, out);
  check_launch(operation);
}

void require_unscaled(const DeviceMatrix& matrix, const char* operation) {
  if (matrix.scaling != Scaling::kNone || bytes_of(matrix.format) == 1) {
    throw std::logic_error(std::string(operation) + ": one side must be FP32 or BF16 without scales");
  }
}

void find_region_scales(const DeviceMatrix& in, const DeviceMatrix& out, const DeviceMatrix& transposed,
                        cudaStream_t stream) {
  const std::int64_t scales = (out.rows + out.rows_per_scale - 1) / out.rows_per_scale * out.groups_per_row;
  region_scales_kernel<<<static_cast<unsigned>(scales), kThreads, 0, stream>>>(in, out);
  check_launch("quantize");
  if (transposed.data == nullptr) return;
  transpose_scales_kernel<<<1, kThreads, 0, stream>>>(out, transposed);
  check_launch("quantize");
}

// The maximum that the one scale of a tensor is made from: args.amax, or found here.
const float* tensor_amax(const QuantizeArgs& args, const DeviceMatrix& in, cudaStream_t stream) {
  if (args.amax != nullptr) return args.amax;
  float* found = DeviceState::current().maximum();
  find_amax(in, found, "quantize", stream);
  return found;
}

void require_transposable(const QuantizeArgs& args, const DeviceMatrix& in, const DeviceMatrix& transposed) {
  if (args.out_transposed.format != args.out.format) {
    throw std::logic_error("quantize: out_transposed must have the format of out");
  }
  if (args.out.format.scaling == Scaling::kGroup || args.out.format.scaling == Scaling::kRow) {
    throw std::logic_error("quantize: codes with scales of rows cannot be transposed (COAT.md 5.5 fact 25)");
  }
  if (transposed.rows != in.cols || transposed.cols != in.rows) {
    throw std::logic_error("quantize: out_transposed must be [cols, rows]");
  }
}

}  // namespace

void clear_amax(float* amax, const char* operation, cudaStream_t stream) {
  if (amax != nullptr) check(cudaMemsetAsync(amax, 0, sizeof(float), stream), operation);
}

void store_tensor_scale(const float* amax, const DeviceMatrix& out, const DeviceMatrix& twin,
                        const char* operation, cudaStream_t stream) {
  tensor_scale_kernel<<<1, 1, 0, stream>>>(amax, out, twin);
  check_launch(operation);
}

void amax(const ConstMatrix& in, float* out, cudaStream_t stream) {
  find_amax(input(in, "amax"), out, "amax", stream);
}

void quantize(const QuantizeArgs& args, cudaStream_t stream) {
  const DeviceMatrix in = input(args.in, "quantize"), out = output(args.out, "quantize");
  const bool transpose = args.out_transposed.data != nullptr;
  const DeviceMatrix transposed = transpose ? output(args.out_transposed, "quantize") : DeviceMatrix{};
  require_unscaled(in, "quantize");
  require_same_shape(in, out, "quantize");
  if (transpose) require_transposable(args, in, transposed);
  if (in.rows == 0 || in.cols == 0) return;
  const bool stochastic = args.rounding == Rounding::kStochastic;
  if (stochastic && bytes_of(out.format) != 1) {
    throw std::logic_error("quantize: only FP8 is rounded stochastically");
  }
  if (out.scaling == Scaling::kTensor) {
    const float* largest = tensor_amax(args, in, stream);
    if (transpose && !stochastic && quantize_blocks(in, out, transposed, largest, stream)) return;
    store_tensor_scale(largest, out, transposed, "quantize", stream);
  } else if (!scales_in_one_pass(out.scaling)) {
    find_region_scales(in, out, transposed, stream);
  }
  if (!transpose && stochastic) return convert_stochastically(in, out, args.random, stream);
  if (!transpose) return convert(in, out, "quantize", stream);
  const MatrixSource<DeviceMatrix> source{in};
  if (!stochastic) return transpose_any(source, out, out, transposed, ToNearest{}, "quantize", stream);
  transpose_any(source, out, out, transposed, Stochastically{args.random}, "quantize", stream);
}

void dequantize(const ConstMatrix& in, const Matrix& out, cudaStream_t stream) {
  const DeviceMatrix from = input(in, "dequantize"), to = output(out, "dequantize");
  require_unscaled(to, "dequantize");
  require_same_shape(from, to, "dequantize");
  convert(from, to, "dequantize", stream);
}

}  // namespace coat::kernels::cuda
