// What RMSNorm and LayerNorm share: blocks that walk over rows, each read once and kept in registers, with
// the row after on its way. Device code only.
//
// A Norm says which: kCentred, the mean is taken off first; kWeighted, a weight a column, whose gradient
// backward finds.
#pragma once

#include <type_traits>

#include "worker/core/kernels/cuda/fetched.cuh"
#include "worker/core/kernels/cuda/lane_sum.cuh"

namespace coat::kernels::cuda {

// A thread's chunks of a row, kept in registers: kChunks of them, the block's width apart. 0: rows of any
// length, read again instead. kFull: rows fill them all.
template <int kChunks, bool kFullRows = false>
struct Kept {
  static constexpr int chunks = kChunks;
  static constexpr bool full = kFullRows;
  static constexpr int places = kChunks > 0 ? kChunks : 1;
};
template <typename K>
struct RowChunks {
  Values chunk[K::places];
};

// Calls body(number of the chunk, col) for this thread's chunks.
template <typename K, typename Body>
__device__ inline void for_own_chunks(std::int64_t cols, Body body) {
  if constexpr (K::chunks > 0) {
#pragma unroll
    for (int c = 0; c < K::chunks; ++c) {
      const std::int64_t col = std::int64_t{threadIdx.x * kChunk} + c * kRowThreads * kChunk;
      if (K::full || col < cols) body(c, col);
    }
  } else {
    for (std::int64_t col = threadIdx.x * kChunk; col < cols; col += blockDim.x * kChunk) body(0, col);
  }
}

// A row's chunks on their way.
template <typename K, typename M>
struct FetchedRow {
  Fetched<M> chunk[K::places];
  __device__ void fetch_row(const M& m, std::int64_t row) {
    const std::int64_t first = threadIdx.x * kChunk;
    for_own_chunks<K>(
        m.cols, [&](int c, std::int64_t) { chunk[c] = fetch(m, row, first, c * kRowThreads * kChunk); });
  }
  __device__ void decode_row(const M& m, RowChunks<K>& row) const {
    for_own_chunks<K>(m.cols, [&](int c, std::int64_t) { row.chunk[c] = decoded<M>(chunk[c]); });
  }
};

// kSums sums over a block's lanes, as add_lanes makes them, with one barrier each time: they take turns at
// two places.
template <int kSums>
class RowSums {
 public:
  static constexpr int kWarps = kRowThreads / kWarp;
  struct alignas(16) Places {
    float warp[2][kSums][kWarps];
  };
  // Every thread of the block takes part, here and in add(). Warps that a narrow row's block lacks stay 0.
  __device__ explicit RowSums(Places& places) : places_(places) {
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kSums * kWarps; i += static_cast<int>(blockDim.x)) {
      (&places.warp[0][0][0])[i] = 0.0f;
    }
    __syncthreads();
  }
  __device__ void add(const Values (&lanes)[kSums], float (&sums)[kSums]) {
    float(&place)[kSums][kWarps] = places_.warp[turn_];
    turn_ ^= 1;
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      const float sum = warp_sum(add_pairs(lanes[s]));
      if (threadIdx.x % kWarp == 0) place[s][threadIdx.x / kWarp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      const auto* fours = reinterpret_cast<const float4*>(place[s]);
      const float4 low = fours[0], high = fours[1];
      sums[s] = low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
    }
  }

 private:
  Places& places_;
  int turn_ = 0;
};

template <typename K, typename M>
__device__ inline Values again(const M& m, const RowChunks<K>& kept, int c, std::int64_t row,
                               std::int64_t col) {
  if constexpr (K::chunks > 0) return kept.chunk[c];
  return load(m, row, col);
}

// v - mean; 0 beyond the row's end.
template <typename M>
__device__ inline Values centred(const M& m, Values v, float mean, std::int64_t col) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = kIsTyped<M> || col + i < m.cols ? v.x[i] - mean : 0.0f;
  return v;
}

// Calls run(what a thread keeps): the fewest chunks that hold a row, or none. kTyped: of matrices of whole
// chunks.
template <bool kTyped, typename Run>
void with_kept_chunks(std::int64_t cols, Run run) {
  const std::int64_t per_chunk = std::int64_t{kRowThreads} * kChunk;
  if constexpr (kTyped) {
    if (cols == per_chunk) return run(Kept<1, true>{});
    if (cols == 2 * per_chunk) return run(Kept<2, true>{});
    if (cols == 4 * per_chunk) return run(Kept<4, true>{});
  }
  if (cols <= per_chunk) return run(Kept<1>{});
  if (cols <= 2 * per_chunk) return run(Kept<2>{});
  if (cols <= 4 * per_chunk) return run(Kept<4>{});
  run(Kept<0>{});
}

// Calls run(x, a type for the BF16 matrices) with their types where x is stored as a recipe stores it and
// `plain` says that the others are whole chunks too, else as they are.
template <typename Run>
void with_row_types(const DeviceMatrix& x, bool plain, Run run) {
  if (plain && is_grouped(x)) return run(GroupedE4M3(x), std::type_identity<Bf16Matrix>{});
  if (plain && is_bf16(x)) return run(Bf16Matrix(x), std::type_identity<Bf16Matrix>{});
  run(x, std::type_identity<DeviceMatrix>{});
}

}  // namespace coat::kernels::cuda
