// Sums in FP64: the gradient norm and the quantization error.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "worker/core/kernels/cuda/add_in_order.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/error_sums.cuh"
#include "worker/core/kernels/cuda/error_sums.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Elements whose squares are added up before they are added to the others, and how many lanes do so; as on
// the CPU.
constexpr std::int64_t kSquareBlock = 4096;
constexpr int kSquareLanes = 8;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(std::uint16_t code) { return decode_bf16(code); }

// sums[block], by 8 threads a block of elements: lane j adds elements j, j + 8, ...; then the lanes are added
// in order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    square_blocks_kernel(const T* data, std::int64_t elements, std::int64_t blocks, double* sums) {
  constexpr int kAtOnce = 16;  // loads in flight
  const int lane = static_cast<int>(threadIdx.x) % kSquareLanes;
  const std::int64_t stride = std::int64_t{gridDim.x} * (kThreads / kSquareLanes);
  const std::int64_t first = std::int64_t{blockIdx.x} * (kThreads / kSquareLanes);
  for (std::int64_t base = first; base < blocks; base += stride) {
    const std::int64_t block = base + threadIdx.x / kSquareLanes;
    const std::int64_t begin = block * kSquareBlock;
    const std::int64_t end = begin + kSquareBlock < elements ? begin + kSquareBlock : elements;
    double mine = 0.0;
    std::int64_t i = begin + lane;
    for (; i + (kAtOnce - 1) * kSquareLanes < end; i += kAtOnce * kSquareLanes) {
      float values[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) values[j] = to_float(data[i + j * kSquareLanes]);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        mine += static_cast<double>(values[j]) * static_cast<double>(values[j]);
    }
    for (; i < end; i += kSquareLanes) {
      const double value = to_float(data[i]);
      mine += value * value;
    }
    double sum = 0.0;
#pragma unroll
    for (int j = 0; j < kSquareLanes; ++j) sum += __shfl_sync(kWholeWarp, mine, j, kSquareLanes);
    if (lane == 0 && block < blocks) sums[block] = sum;
  }
}

// *total += values, in order, by one thread over tiles that the block loads.
__global__ void __launch_bounds__(kThreads)
    add_in_order_kernel(const double* values, std::int64_t count, double* total) {
  constexpr int kTile = 1024;
  __shared__ double tile[kTile];
  double sum = *total;
  for (std::int64_t base = 0; base < count; base += kTile) {
    const int here = static_cast<int>(count - base < kTile ? count - base : kTile);
    for (int i = static_cast<int>(threadIdx.x); i < here; i += kThreads) tile[i] = values[base + i];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < here; ++i) sum += tile[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = sum;
}

// *total += values: thread j adds values j, j + 256, ... in order, then threads are added by halves.
__global__ void __launch_bounds__(kThreads)
    add_in_lanes_kernel(const double* values, std::int64_t count, double* total) {
  __shared__ double lanes[kThreads];
  double mine = 0.0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) mine += values[i];
  lanes[threadIdx.x] = mine;
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) lanes[threadIdx.x] += lanes[threadIdx.x + width];
  }
  if (threadIdx.x == 0) *total += lanes[0];
}

__global__ void clip_factor_kernel(const __grid_constant__ ClipFactorArgs args) {
  const double norm = sqrt(*args.sum_of_squares);
  const double factor = args.clip_norm > 0 && norm > args.clip_norm ? args.clip_norm / norm : 1.0;
  *args.factor = isfinite(norm) ? static_cast<float>(factor) : __uint_as_float(0x7FC00000u);
}

// The largest |x| / scale that rounds to the largest finite code by itself: half a step beyond it, where the
// tie goes to the even code, which is below for E4M3 (464) and above for E5M2 (61440).
float saturation_threshold(Format format) {
  if (format == Format::kE4M3) return 464.0f;
  if (format == Format::kE5M2) return std::nextafter(61440.0f, 0.0f);
  return std::numeric_limits<float>::infinity();
}

__device__ float scale_of(const DeviceMatrix& m, std::int64_t row, std::int64_t col) {
  if (m.scaling == Scaling::kNone) return 1.0f;
  return scale_at(m, scale_index(m, row, col));
}

__global__ void __launch_bounds__(kThreads) error_kernel(DeviceMatrix reference, DeviceMatrix stored,
                                                         Cover cover, float threshold, ErrorSums* partial) {
  ErrorSums mine;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    if (row >= reference.rows) return;
    const Values x = load(reference, row, col), y = load(stored, row, col);
    for (int i = 0; i < kChunk && col + i < reference.cols; ++i) {
      add_error(x.x[i], y.x[i], mine);
      const float limit = threshold * scale_of(stored, row, col + i);
      mine.saturated += fabs(static_cast<double>(x.x[i])) > static_cast<double>(limit) ? 1.0 : 0.0;
    }
  });
  store_block_sums(mine, partial + blockIdx.x);
}

}  // namespace

void add_in_order(const double* values, std::int64_t count, double* total, const char* operation,
                  cudaStream_t stream) {
  add_in_order_kernel<<<1, kThreads, 0, stream>>>(values, count, total);
  check_launch(operation);
}

void add_error_sums(const ErrorSums* partial, int blocks, int sums_per_block, ErrorSums* const* totals,
                    const char* operation, cudaStream_t stream) {
  std::vector<ErrorSums> parts(static_cast<std::size_t>(blocks * sums_per_block));
  check(cudaMemcpyAsync(parts.data(), partial, parts.size() * sizeof(ErrorSums), cudaMemcpyDeviceToHost,
                        stream),
        operation);
  check(cudaStreamSynchronize(stream), operation);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    totals[i % static_cast<std::size_t>(sums_per_block)]->add(parts[i]);
  }
}

void sum_of_squares(const void* data, Format format, std::int64_t elements, double* out,
                    cudaStream_t stream) {
  constexpr const char* kName = "sum_of_squares";
  if (format != Format::kFp32 && format != Format::kBf16) {
    throw std::logic_error("sum_of_squares: the data must be FP32 or BF16");
  }
  if (elements <= 0) return;
  const std::int64_t blocks = (elements + kSquareBlock - 1) / kSquareBlock;
  double* sums = DeviceState::current().partial_sums().elements<double>(blocks, kName);
  const int grid = blocks_for(blocks * kSquareLanes, kThreads);
  if (format == Format::kFp32) {
    square_blocks_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const float*>(data), elements, blocks,
                                                        sums);
  } else {
    square_blocks_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const std::uint16_t*>(data), elements,
                                                        blocks, sums);
  }
  check_launch(kName);
  add_in_lanes_kernel<<<1, kThreads, 0, stream>>>(sums, blocks, out);
  check_launch(kName);
}

void clip_factor(const ClipFactorArgs& args, cudaStream_t stream) {
  clip_factor_kernel<<<1, 1, 0, stream>>>(args);
  check_launch("clip_factor");
}

void quantization_error(const ConstMatrix& reference, const ConstMatrix& stored, ErrorSums* sums,
                        cudaStream_t stream) {
  constexpr const char* kName = "quantization_error";
  const DeviceMatrix exact = input(reference, kName), kept = input(stored, kName);
  require_same_shape(exact, kept, kName);
  if (exact.scaling != Scaling::kNone || bytes_of(exact.format) == 1) {
    throw std::logic_error("quantization_error: the reference must be FP32 or BF16 without scales");
  }
  if (exact.rows == 0 || exact.cols == 0) return;
  const Cover whole = cover(exact.rows, exact.cols, {});
  const int blocks = blocks_for(whole.total(), kThreads);
  ErrorSums* partial = DeviceState::current().partial_sums().elements<ErrorSums>(blocks, kName);
  error_kernel<<<blocks, kThreads, 0, stream>>>(exact, kept, whole, saturation_threshold(kept.format),
                                                partial);
  check_launch(kName);
  add_error_sums(partial, blocks, 1, &sums, kName, stream);
}

}  // namespace coat::kernels::cuda
