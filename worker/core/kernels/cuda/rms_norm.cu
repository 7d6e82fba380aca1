#include <type_traits>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/lane_sum.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

// Rows whose weight gradients are added up before they are added to the others, in order; as the CPU does.
constexpr std::int64_t kSlabRows = 64;

// A thread's chunks of a row, kept in registers: kKept of them, the block's width apart. 0: rows of any
// length, read again instead.
template <int kKept>
struct RowChunks {
  Values chunk[kKept > 0 ? kKept : 1];
};

// Calls body(number of the chunk, col) for this thread's chunks.
template <int kKept, typename Body>
__device__ inline void for_own_chunks(std::int64_t cols, Body body) {
  if constexpr (kKept > 0) {
#pragma unroll
    for (int c = 0; c < kKept; ++c) {
      const std::int64_t col = std::int64_t{threadIdx.x + c * kRowThreads} * kChunk;
      if (col < cols) body(c, col);
    }
  } else {
    for (std::int64_t col = threadIdx.x * kChunk; col < cols; col += blockDim.x * kChunk) body(0, col);
  }
}

// The same of the row after, on their way while a row is worked on.
template <int kKept, typename M>
struct FetchedRow {
  Fetched<M> chunk[kKept > 0 ? kKept : 1];
  __device__ void fetch_row(const M& m, std::int64_t row) {
    for_own_chunks<kKept>(m.cols, [&](int c, std::int64_t col) { chunk[c] = fetch(m, row, col); });
  }
  __device__ void decode_row(const M& m, RowChunks<kKept>& row) const {
    for_own_chunks<kKept>(m.cols, [&](int c, std::int64_t) { row.chunk[c] = decoded<M>(chunk[c]); });
  }
};

template <int kKept, typename M>
__device__ inline Values again(const M& m, const RowChunks<kKept>& kept, int c, std::int64_t row,
                               std::int64_t col) {
  if constexpr (kKept > 0) return kept.chunk[c];
  return load(m, row, col);
}

template <int kKept, typename X, typename W, typename Y>
__global__ void __launch_bounds__(kRowThreads, kKept == 2 ? 4 : 1)
    forward_kernel(X x, W weight, float eps, Y y, float* rstds, float* amax) {
  std::uint32_t largest = 0;
  FetchedRow<kKept, X> next;
  if constexpr (kKept > 0) next.fetch_row(x, blockIdx.x);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    RowChunks<kKept> kept;
    if constexpr (kKept > 0) {
      next.decode_row(x, kept);
      if (row + gridDim.x < x.rows) next.fetch_row(x, row + gridDim.x);
    }
    Values lanes{};
    for_own_chunks<kKept>(x.cols, [&](int c, std::int64_t col) {
      const Values v = again(x, kept, c, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) lanes.x[i] += v.x[i] * v.x[i];
    });
    const float rstd = 1.0f / sqrtf(add_lanes(lanes) / static_cast<float>(x.cols) + eps);
    if (threadIdx.x == 0) rstds[row] = rstd;
    for_own_chunks<kKept>(x.cols, [&](int c, std::int64_t col) {
      Values v = again(x, kept, c, row, col);
      const Values w = load(weight, 0, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * rstd * w.x[i];
      largest = max(largest, store_rounded(y, row, col, v));
    });
  }
  join_amax(amax, largest);
}

// One block a slab: dx of its rows, and partial[slab, col], the weight gradient of them, added in order. dx
// may be dy: each element is read before it is written, by the same thread.
template <int kKept, typename X, typename W, typename Y>
__global__ void __launch_bounds__(kRowThreads, kKept > 0 && kKept <= 2 ? 2 : 1)
    backward_kernel(X x, W weight, const float* rstds, Y dy, Y dx, float* partial) {
  const std::int64_t first = blockIdx.x * kSlabRows;
  const std::int64_t last = first + kSlabRows < x.rows ? first + kSlabRows : x.rows;
  RowChunks<kKept> w, sums{};
  for_own_chunks<kKept>(x.cols, [&](int c, std::int64_t col) { w.chunk[c] = load(weight, 0, col); });
  FetchedRow<kKept, X> next_x;
  FetchedRow<kKept, Y> next_g;
  next_x.fetch_row(x, first);
  next_g.fetch_row(dy, first);
  float next_rstd = rstds[first];
  for (std::int64_t row = first; row < last; ++row) {
    RowChunks<kKept> kept_x, kept_g;
    next_x.decode_row(x, kept_x);
    next_g.decode_row(dy, kept_g);
    const float rstd = next_rstd;
    if (row + 1 < last) {
      next_rstd = rstds[row + 1];
      next_x.fetch_row(x, row + 1);
      next_g.fetch_row(dy, row + 1);
    }
    Values lanes{};
    for_own_chunks<kKept>(x.cols, [&](int c, std::int64_t col) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float normalized = kept_x.chunk[c].x[i] * rstd, g = kept_g.chunk[c].x[i];
        lanes.x[i] += normalized * (w.chunk[c].x[i] * g);
        sums.chunk[c].x[i] += g * normalized;
      }
    });
    const float mean = add_lanes(lanes) / static_cast<float>(x.cols);
    for_own_chunks<kKept>(x.cols, [&](int c, std::int64_t col) {
      Values v;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float normalized = kept_x.chunk[c].x[i] * rstd;
        v.x[i] = (w.chunk[c].x[i] * kept_g.chunk[c].x[i] - normalized * mean) * rstd;
      }
      store(dx, row, col, v, 1);
    });
  }
  for_own_chunks<kKept>(x.cols, [&](int c, std::int64_t col) {
    float* out = partial + std::int64_t{blockIdx.x} * x.cols + col;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (col + i < x.cols) out[i] = sums.chunk[c].x[i];
    }
  });
}

// The same for rows that no thread can keep.
__global__ void __launch_bounds__(kRowThreads)
    backward_by_reading_kernel(DeviceMatrix x, DeviceMatrix weight, const float* rstds, DeviceMatrix dy,
                               DeviceMatrix dx, float* partial) {
  const std::int64_t first = blockIdx.x * kSlabRows;
  const std::int64_t last = first + kSlabRows < x.rows ? first + kSlabRows : x.rows;
  float* sums = partial + std::int64_t{blockIdx.x} * x.cols;
  for (std::int64_t row = first; row < last; ++row) {
    const float rstd = rstds[row];
    const float sum = lane_sum(x.cols, [&](std::int64_t col) {
      Values v = load(x, row, col);
      const Values w = load(weight, 0, col), g = load(dy, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * rstd * (w.x[i] * g.x[i]);
      return v;
    });
    const float mean = sum / static_cast<float>(x.cols);
    for_own_chunks<0>(x.cols, [&](int, std::int64_t col) {
      Values v = load(x, row, col);
      const Values w = load(weight, 0, col), g = load(dy, row, col);
      for (int i = 0; i < kChunk && col + i < x.cols; ++i) {
        const float before = row > first ? sums[col + i] : 0.0f;
        sums[col + i] = before + g.x[i] * (v.x[i] * rstd);
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = (w.x[i] * g.x[i] - v.x[i] * rstd * mean) * rstd;
      store(dx, row, col, v, 1);
    });
  }
}

__global__ void __launch_bounds__(kRowThreads)
    add_slabs_kernel(const float* partial, std::int64_t slabs, std::int64_t cols, float* dweight) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  float sum = dweight[col];
#pragma unroll 16
  for (std::int64_t slab = 0; slab < slabs; ++slab) sum += partial[slab * cols + col];
  dweight[col] = sum;
}

DeviceMatrix fp32_matrix(const float* data, std::int64_t rows, std::int64_t cols, const char* operation) {
  return input({data, nullptr, {Format::kFp32, Scaling::kNone}, rows, cols}, operation);
}

// Calls run(how many chunks a thread keeps): the fewest that hold a row, or 0.
template <typename Run>
void with_kept_chunks(std::int64_t cols, Run run) {
  const std::int64_t per_chunk = std::int64_t{kRowThreads} * kChunk;
  if (cols <= per_chunk) return run(std::integral_constant<int, 1>{});
  if (cols <= 2 * per_chunk) return run(std::integral_constant<int, 2>{});
  if (cols <= 4 * per_chunk) return run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, 0>{});
}

// Calls run(x, weight, others...) with their types where x is stored as a recipe stores it, else as they are.
template <typename Run>
void with_types(const DeviceMatrix& x, const DeviceMatrix& weight, const DeviceMatrix& dy,
                const DeviceMatrix& y, Run run) {
  const bool plain = is_fp32(weight) && is_bf16(dy) && is_bf16(y);
  if (plain && is_grouped(x)) return run(GroupedE4M3(x), Fp32Matrix(weight), Bf16Matrix(dy), Bf16Matrix(y));
  if (plain && is_bf16(x)) return run(Bf16Matrix(x), Fp32Matrix(weight), Bf16Matrix(dy), Bf16Matrix(y));
  run(x, weight, dy, y);
}

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  clear_amax(args.amax_out, kName, stream);
  if (x.rows == 0 || x.cols == 0) return;
  const DeviceMatrix weight = fp32_matrix(args.weight, 1, x.cols, kName);
  with_types(x, weight, y, y, [&](auto typed_x, auto typed_weight, auto typed_y, auto) {
    with_kept_chunks(x.cols, [&]<int kKept>(std::integral_constant<int, kKept>) {
      forward_kernel<kKept><<<blocks_for(x.rows, 1), row_threads(x.cols), 0, stream>>>(
          typed_x, typed_weight, args.eps, typed_y, args.rstd, args.amax_out);
    });
  });
  check_launch(kName);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  if (x.rows == 0 || x.cols == 0) return;
  const DeviceMatrix weight = fp32_matrix(args.weight, 1, x.cols, kName);
  const std::int64_t slabs = (x.rows + kSlabRows - 1) / kSlabRows;
  float* sums = DeviceState::current().partial_sums().elements<float>(slabs * x.cols, kName);
  const auto blocks = static_cast<unsigned>(slabs);
  with_types(x, weight, dy, dx, [&](auto typed_x, auto typed_weight, auto typed_dy, auto typed_dx) {
    with_kept_chunks(x.cols, [&]<int kKept>(std::integral_constant<int, kKept>) {
      if constexpr (kKept > 0) {
        backward_kernel<kKept><<<blocks, row_threads(x.cols), 0, stream>>>(typed_x, typed_weight, args.rstd,
                                                                           typed_dy, typed_dx, sums);
      } else {
        backward_by_reading_kernel<<<blocks, kRowThreads, 0, stream>>>(x, weight, args.rstd, dy, dx, sums);
      }
    });
  });
  check_launch(kName);
  const auto column_blocks = static_cast<unsigned>((x.cols + kRowThreads - 1) / kRowThreads);
  add_slabs_kernel<<<column_blocks, kRowThreads, 0, stream>>>(sums, slabs, x.cols, args.dweight);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
