// Format conversions and maxima.
#include <stdexcept>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;  // rows and cols of the squares that are transposed
constexpr int kTileChunks = kTile / kChunk;

__global__ void __launch_bounds__(kThreads) amax_kernel(DeviceMatrix in, Cover cover, float* out) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    largest = max(largest, largest_magnitude(load(in, row, col)));
  });
  join_amax(out, largest);
}

__global__ void tensor_scale_kernel(const float* amax, DeviceMatrix out, DeviceMatrix twin) {
  const float scale = stored_scale(scale_from_amax(*amax, out.largest), out.scale_format);
  write_scale(out, 0, scale);
  if (twin.data != nullptr) write_scale(twin, 0, scale);
}

__global__ void __launch_bounds__(kThreads) convert_kernel(DeviceMatrix in, DeviceMatrix out, Cover cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    store(out, row, col, load(in, row, col), cover.lanes_per_group);
  });
}

// Codes of one square, row-major and transposed. Not for groups. Threads: kTile * kTileChunks / 2.
__global__ void __launch_bounds__(kThreads)
    convert_and_transpose_kernel(DeviceMatrix in, DeviceMatrix out, DeviceMatrix transposed) {
  __shared__ std::uint32_t square[kTile][kTile + 1];
  const std::int64_t squares_across = (in.cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / squares_across * kTile, col0 = blockIdx.x % squares_across * kTile;
  const float scale = out.scaling == Scaling::kTensor ? scale_at(out, 0) : 1.0f;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileChunks; i += kThreads) {
    const int row = i / kTileChunks, col = i % kTileChunks * kChunk;
    const Values v = load(in, row0 + row, col0 + col);
    const Codes codes =
        out.scaling == Scaling::kTensor ? encode_scaled(out.format, v, scale) : encode(out.format, v);
    if (row0 + row < out.rows) store_codes(out, row0 + row, col0 + col, codes);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) square[row][col + j] = codes.x[j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileChunks; i += kThreads) {
    const int col = i / kTileChunks, row = i % kTileChunks * kChunk;
    Codes codes;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) codes.x[j] = square[row + j][col];
    if (col0 + col < transposed.rows) store_codes(transposed, col0 + col, row0 + row, codes);
  }
}

void convert(const DeviceMatrix& in, const DeviceMatrix& out, const char* operation, cudaStream_t stream) {
  if (in.rows == 0 || in.cols == 0) return;
  const Cover whole = cover(in.rows, in.cols, out);
  convert_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(in, out, whole);
  check_launch(operation);
}

void find_amax(const DeviceMatrix& in, float* out, const char* operation, cudaStream_t stream) {
  clear_amax(out, operation, stream);
  if (in.rows == 0 || in.cols == 0) return;
  const Cover whole = cover(in.rows, in.cols, {});
  amax_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(in, whole, out);
  check_launch(operation);
}

void require_unscaled(const DeviceMatrix& matrix, const char* operation) {
  if (matrix.scaling != Scaling::kNone || bytes_of(matrix.format) == 1) {
    throw std::logic_error(std::string(operation) + ": one side must be FP32 or BF16 without scales");
  }
}

void require_transposable(const QuantizeArgs& args, const DeviceMatrix& in, const DeviceMatrix& transposed) {
  if (args.out_transposed.format != args.out.format) {
    throw std::logic_error("quantize: out_transposed must have the format of out");
  }
  if (args.out.format.scaling == Scaling::kGroup) {
    throw std::logic_error(
        "quantize: codes with a scale per group of a row cannot be transposed (COAT.md 5.5 fact 25)");
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
  if (out.scaling == Scaling::kTensor) {
    const float* largest = args.amax;
    if (largest == nullptr) {
      float* found = DeviceState::current().maximum();
      find_amax(in, found, "quantize", stream);
      largest = found;
    }
    store_tensor_scale(largest, out, transposed, "quantize", stream);
  }
  if (!transpose) return convert(in, out, "quantize", stream);
  const std::int64_t squares = (in.rows + kTile - 1) / kTile * ((in.cols + kTile - 1) / kTile);
  convert_and_transpose_kernel<<<static_cast<unsigned>(squares), kThreads, 0, stream>>>(in, out, transposed);
  check_launch("quantize");
}

void dequantize(const ConstMatrix& in, const Matrix& out, cudaStream_t stream) {
  const DeviceMatrix from = input(in, "dequantize"), to = output(out, "dequantize");
  require_unscaled(to, "dequantize");
  require_same_shape(from, to, "dequantize");
  convert(from, to, "dequantize", stream);
}

}  // namespace coat::kernels::cuda
