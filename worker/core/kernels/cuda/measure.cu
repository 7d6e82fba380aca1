// Sums in FP64: the gradient norm and the quantization error.
#include <cuda_pipeline.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
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
constexpr int kSquareThreads = 128;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(std::uint16_t code) { return decode_bf16(code); }

// A warp's 4 blocks of elements on their way through shared memory: pieces of 128 elements a block, kDepth of
// them, whole lines of the data each.
constexpr int kWarpBlocks = kWarp / kSquareLanes, kPiece = 128, kDepth = 4;
template <typename T>
struct SquarePieces {
  static constexpr int kUnit = 16 / sizeof(T), kUnits = kPiece / kUnit;  // what one instruction copies
  static constexpr int kStride = kPiece + 32 / sizeof(T);  // so that the 4 blocks lie in other banks
  struct alignas(16) Piece {
    T x[kWarpBlocks][kStride];
  };
  Piece pieces[kDepth];

  // `data`: the first of the warp's elements.
  __device__ void fetch(const T* data, int piece) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Piece& place = pieces[piece % kDepth];
#pragma unroll
    for (int i = 0; i < kWarpBlocks * kUnits; i += kWarp) {
      const int block = (i + lane) / kUnits, at = (i + lane) % kUnits * kUnit;
      __pipeline_memcpy_async(&place.x[block][at], data + block * kSquareBlock + piece * kPiece + at, 16);
    }
  }
  // The squares of one lane of a whole block.
  __device__ double add(const T* data, int block, int lane) {
    constexpr int kPieces = kSquareBlock / kPiece;
    double sum = 0.0;
    for (int piece = 0; piece < kDepth - 1; ++piece) {
      fetch(data, piece);
      __pipeline_commit();
    }
    for (int piece = 0; piece < kPieces; ++piece) {
      __pipeline_wait_prior(kDepth - 2);
      __syncwarp();  // what other lanes copied is here, and the piece before this one is read
      if (piece + kDepth - 1 < kPieces) fetch(data, piece + kDepth - 1);
      __pipeline_commit();
      const T* x = pieces[piece % kDepth].x[block] + lane;
#pragma unroll
      for (int i = 0; i < kPiece; i += kSquareLanes) {
        const double value = to_float(x[i]);
        sum = __fma_rn(value, value, sum);  // the product of two FP32 numbers is exact in FP64
      }
    }
    return sum;
  }
};

// A SquaredArray as the kernel reads it. Its parts, a block of threads each, are numbered through with those
// of all arrays.
struct SquaredEntry {
  const void* data;
  Format format;
  bool wide;  // lies so that 16 bytes can be copied at once
  std::int64_t elements;
  std::int64_t first_part;
};
constexpr int kPartBlocks = kSquareThreads / kSquareLanes;

// One lane's squares of one of a part's blocks; the warp's others are near.
template <typename T>
__device__ double add_squares(const SquaredEntry& array, std::int64_t part, SquarePieces<T>& pieces) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kSquareLanes,
            own = static_cast<int>(threadIdx.x) % kWarp / kSquareLanes;
  const T* data = static_cast<const T*>(array.data);
  const std::int64_t first = part * kPartBlocks + warp * kWarpBlocks;
  if (array.wide && (first + kWarpBlocks) * kSquareBlock <= array.elements) {
    return pieces.add(data + first * kSquareBlock, own, lane);
  }
  const std::int64_t begin = (first + own) * kSquareBlock;
  const std::int64_t end = begin + kSquareBlock < array.elements ? begin + kSquareBlock : array.elements;
  double mine = 0.0;
  for (std::int64_t i = begin + lane; i < end; i += kSquareLanes) {
    const double value = to_float(data[i]);
    mine = __fma_rn(value, value, mine);
  }
  return mine;
}

// sums[part], by 8 threads a block of elements: lane j adds elements j, j + 8, ...; then the lanes are added
// in order, and the blocks.
__global__ void __launch_bounds__(kSquareThreads)
    square_parts_kernel(const SquaredEntry* arrays, int count, double* sums) {
  constexpr int kWarps = kSquareThreads / kWarp;
  __shared__ union {
    SquarePieces<float> fp32[kWarps];
    SquarePieces<std::uint16_t> bf16[kWarps];
  } pieces;
  __shared__ double blocks[kPartBlocks];
  const std::int64_t number = blockIdx.x;
  int low = 0, beyond = count;  // the last array that begins at or before the part
  while (beyond - low > 1) {
    const int middle = (low + beyond) / 2;
    (arrays[middle].first_part <= number ? low : beyond) = middle;
  }
  const SquaredEntry array = arrays[low];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const double mine = array.format == Format::kFp32
                          ? add_squares(array, number - array.first_part, pieces.fp32[warp])
                          : add_squares(array, number - array.first_part, pieces.bf16[warp]);
  double sum = 0.0;
#pragma unroll
  for (int j = 0; j < kSquareLanes; ++j) sum += __shfl_sync(kWholeWarp, mine, j, kSquareLanes);
  if (threadIdx.x % kSquareLanes == 0) blocks[threadIdx.x / kSquareLanes] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
#pragma unroll
  for (int block = 0; block < kPartBlocks; ++block) total += blocks[block];
  sums[number] = total;
}

// *total += values: thread j adds values j, j + 256, ... in order, then threads are added by halves. A
// thread's values of kRounds rounds are on their way to its own places in shared memory at once.
constexpr int kRounds = 64;
constexpr int kRoundsBytes = kRounds * kThreads * static_cast<int>(sizeof(double));
__global__ void __launch_bounds__(kThreads)
    add_in_lanes_kernel(const double* values, std::int64_t count, double* total) {
  extern __shared__ double lanes[];
  double* own = lanes + threadIdx.x;
  double mine = 0.0;
  for (std::int64_t first = threadIdx.x; first < count; first += kRounds * kThreads) {
    const std::int64_t left = (count - first + kThreads - 1) / kThreads;
    const int here = static_cast<int>(left < kRounds ? left : kRounds);
    for (int i = 0; i < here; ++i) {
      __pipeline_memcpy_async(own + i * kThreads, values + first + i * kThreads, sizeof(double));
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
#pragma unroll 8
    for (int i = 0; i < here; ++i) mine += own[i * kThreads];
  }
  *own = mine;
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) *own += own[width];
  }
  if (threadIdx.x == 0) *total += *own;
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

void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out, cudaStream_t stream) {
  constexpr const char* kName = "sum_of_squares";
  constexpr std::int64_t kPart = kPartBlocks * kSquareBlock;
  std::vector<SquaredEntry> entries;
  std::int64_t parts = 0;
  for (const SquaredArray& array : arrays) {
    if (array.format != Format::kFp32 && array.format != Format::kBf16) {
      throw std::logic_error("sum_of_squares: the data must be FP32 or BF16");
    }
    if (array.elements <= 0) continue;
    const bool wide = reinterpret_cast<std::uintptr_t>(array.data) % 16 == 0;
    entries.push_back({array.data, array.format, wide, array.elements, parts});
    parts += (array.elements + kPart - 1) / kPart;
  }
  if (entries.empty()) return;
  DeviceState& state = DeviceState::current();
  const auto count = static_cast<std::int64_t>(entries.size());
  auto* table = state.tensor_table().elements<SquaredEntry>(count, kName);
  check(cudaMemcpyAsync(table, entries.data(), entries.size() * sizeof(SquaredEntry), cudaMemcpyHostToDevice,
                        stream),
        kName);
  double* sums = state.partial_sums().elements<double>(parts, kName);
  square_parts_kernel<<<static_cast<unsigned>(parts), kSquareThreads, 0, stream>>>(
      table, static_cast<int>(count), sums);
  check_launch(kName);
  check(cudaFuncSetAttribute(add_in_lanes_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRoundsBytes),
        kName);
  add_in_lanes_kernel<<<1, kThreads, kRoundsBytes, stream>>>(sums, parts, out);
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
