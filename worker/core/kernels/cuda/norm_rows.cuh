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

// Blocks that a multiprocessor should hold.
template <typename K, typename X>
constexpr int blocks_for_kept() {
  if (!kIsTyped<X>) return 1;
  return K::chunks > 2 ? 2 : 4;
}

template <typename K, typename Norm, typename X, typename Y>
__global__ void __launch_bounds__(kRowThreads, blocks_for_kept<K, X>())
    norm_forward_kernel(X x, Norm norm, float eps, Y y, float* means, float* rstds, float* amax) {
  __shared__ RowSums<1>::Places places;
  RowSums<1> row_sums(places);
  const auto width = static_cast<float>(x.cols);
  std::uint32_t halves = 0;
  RowChunks<K> w;
  FetchedRow<K, X> next;
  if constexpr (K::chunks > 0) {
    next.fetch_row(x, blockIdx.x);
    if constexpr (Norm::kWeighted) {
      for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) { w.chunk[c] = load(norm.weight, 0, col); });
    }
  }
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    RowChunks<K> kept;
    if constexpr (K::chunks > 0) {
      next.decode_row(x, kept);
      if (row + gridDim.x < x.rows) next.fetch_row(x, row + gridDim.x);
    }
    float sum[1], mean = 0.0f;
    if constexpr (Norm::kCentred) {
      Values lanes[1] = {};
      for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
        const Values v = again(x, kept, c, row, col);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) lanes[0].x[i] += v.x[i];
      });
      row_sums.add(lanes, sum);
      mean = sum[0] / width;
      for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
        if constexpr (K::chunks > 0) kept.chunk[c] = centred(x, kept.chunk[c], mean, col);
      });
    }
    const auto values = [&](int c, std::int64_t col) {
      const Values v = again(x, kept, c, row, col);
      return Norm::kCentred && K::chunks == 0 ? centred(x, v, mean, col) : v;
    };
    Values lanes[1] = {};
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      const Values v = values(c, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float square = v.x[i] * v.x[i];  // never -0, so the first needs no 0 before it
        lanes[0].x[i] = K::chunks > 0 && c == 0 ? square : lanes[0].x[i] + square;
      }
    });
    row_sums.add(lanes, sum);
    const float rstd = 1.0f / sqrtf(sum[0] / width + eps);
    if (threadIdx.x == 0) {
      rstds[row] = rstd;
      if constexpr (Norm::kCentred) means[row] = mean;
    }
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      Values v = times(values(c, col), rstd);
      if constexpr (Norm::kWeighted) {
        if constexpr (K::chunks == 0) w.chunk[0] = load(norm.weight, 0, col);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * w.chunk[c].x[i];
      }
      store_rounded<K::full>(y, row, col, v, halves);
    });
  }
  join_amax(amax, magnitude_of_halves(halves));
}

// Sums that backward needs of a row.
template <typename Norm>
inline constexpr int kBackwardSums = Norm::kCentred ? 2 : 1;

struct RowRange {
  std::int64_t first, last;  // last is beyond
};
__device__ inline RowRange rows_of_block(std::int64_t rows, std::int64_t rows_per_block) {
  const std::int64_t first = blockIdx.x * rows_per_block;
  return {first, first + rows_per_block < rows ? first + rows_per_block : rows};
}

// What backward needs of a row beside its elements.
struct RowStatistics {
  float mean = 0, rstd = 0;
};
template <typename Norm>
__device__ inline RowStatistics statistics_of(const float* means, const float* rstds, std::int64_t row) {
  return {Norm::kCentred ? means[row] : 0.0f, rstds[row]};
}

// x of a chunk becomes the normalized x, dy becomes dy times the weight; the sums of backward grow by them,
// and `dw` by dy times the normalized x.
template <typename Norm, int kSums, typename X>
__device__ inline void normalize_and_add(const X& m, std::int64_t col, const RowStatistics& of,
                                         const Values& w, Values& x, Values& dy, Values (&lanes)[kSums],
                                         Values& dw) {
  if constexpr (Norm::kCentred) x = centred(m, x, of.mean, col);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    x.x[i] = x.x[i] * of.rstd;
    if constexpr (Norm::kCentred) lanes[1].x[i] += dy.x[i];
    if constexpr (Norm::kWeighted) {
      dw.x[i] += dy.x[i] * x.x[i];
      dy.x[i] = w.x[i] * dy.x[i];
    }
    lanes[0].x[i] += x.x[i] * dy.x[i];
  }
}

// dx of a chunk after that; `sums` are those of the row.
template <typename Norm, int kSums>
__device__ inline Values slope_of(const Values& x, const Values& dy, const float (&sums)[kSums], float width,
                                  float rstd) {
  const float slope = sums[0] / width;
  Values v;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if constexpr (Norm::kCentred) {
      v.x[i] = (dy.x[i] - sums[kSums - 1] / width - x.x[i] * slope) * rstd;
    } else {
      v.x[i] = (dy.x[i] - x.x[i] * slope) * rstd;
    }
  }
  return v;
}

// dx of a block's rows and, where there are weights, their gradient of these rows, added in order:
// partial[block, col]. dx may be dy: each element is read before it is written, by the same thread.
template <typename K, typename Norm, typename X, typename Y>
__global__ void __launch_bounds__(kRowThreads, kIsTyped<X>&& K::chunks <= 2 ? 2 : 1)
    norm_backward_kernel(X x, Norm norm, const float* means, const float* rstds, Y dy, Y dx,
                         std::int64_t rows_per_block, float* partial) {
  constexpr int kSums = kBackwardSums<Norm>;
  __shared__ typename RowSums<kSums>::Places places;
  RowSums<kSums> row_sums(places);
  const auto [first, last] = rows_of_block(x.rows, rows_per_block);
  const auto width = static_cast<float>(x.cols);
  RowChunks<K> w, dw{};
  if constexpr (Norm::kWeighted) {
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) { w.chunk[c] = load(norm.weight, 0, col); });
  }
  // Two rows are on their way while one is worked on, where registers allow it: a row's work takes less time
  // than the memory's answer.
  constexpr int kAhead = K::full && K::chunks <= 2 ? 2 : 1;
  struct {
    FetchedRow<K, X> x;
    FetchedRow<K, Y> dy;
    RowStatistics of;
  } next[kAhead];
  const auto fetch_row = [&](auto& place, std::int64_t row) {
    if (row >= last) return;
    place.x.fetch_row(x, row);
    place.dy.fetch_row(dy, row);
    place.of = statistics_of<Norm>(means, rstds, row);
  };
  const auto work_on = [&](auto& place, std::int64_t row) {
    RowChunks<K> kept_x, kept_g;
    place.x.decode_row(x, kept_x);
    place.dy.decode_row(dy, kept_g);
    const RowStatistics of = place.of;
    fetch_row(place, row + kAhead);
    Values lanes[kSums] = {};
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      normalize_and_add<Norm>(x, col, of, w.chunk[c], kept_x.chunk[c], kept_g.chunk[c], lanes, dw.chunk[c]);
    });
    float sums[kSums];
    row_sums.add(lanes, sums);
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      store(dx, row, col, slope_of<Norm>(kept_x.chunk[c], kept_g.chunk[c], sums, width, of.rstd), 1);
    });
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch_row(next[i], first + i);
  for (std::int64_t row = first; row < last; row += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (row + i < last) work_on(next[i], row + i);
    }
  }
  if constexpr (Norm::kWeighted) {
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      float* out = partial + std::int64_t{blockIdx.x} * x.cols + col;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (col + i < x.cols) out[i] = dw.chunk[c].x[i];
      }
    });
  }
}

// The same for rows that no thread can keep.
template <typename Norm>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_by_reading_kernel(DeviceMatrix x, Norm norm, const float* means, const float* rstds,
                                    DeviceMatrix dy, DeviceMatrix dx, std::int64_t rows_per_block,
                                    float* partial) {
  constexpr int kSums = kBackwardSums<Norm>;
  __shared__ typename RowSums<kSums>::Places places;
  RowSums<kSums> row_sums(places);
  const auto [first, last] = rows_of_block(x.rows, rows_per_block);
  const auto width = static_cast<float>(x.cols);
  float* dweight = partial + std::int64_t{blockIdx.x} * x.cols;
  for (std::int64_t row = first; row < last; ++row) {
    const RowStatistics of = statistics_of<Norm>(means, rstds, row);
    const auto chunk = [&](std::int64_t col, Values& v, Values& g, Values(&lanes)[kSums], Values& dw) {
      Values w{};
      if constexpr (Norm::kWeighted) w = load(norm.weight, 0, col);
      v = load(x, row, col);
      g = load(dy, row, col);
      normalize_and_add<Norm>(x, col, of, w, v, g, lanes, dw);
    };
    Values v, g, lanes[kSums] = {};
    for_own_chunks<Kept<0>>(x.cols, [&](int, std::int64_t col) {
      Values dw{};
      if constexpr (Norm::kWeighted) {
        for (int i = 0; i < kChunk && row > first && col + i < x.cols; ++i) dw.x[i] = dweight[col + i];
      }
      chunk(col, v, g, lanes, dw);
      if constexpr (Norm::kWeighted) {
        for (int i = 0; i < kChunk && col + i < x.cols; ++i) dweight[col + i] = dw.x[i];
      }
    });
    float sums[kSums];
    row_sums.add(lanes, sums);
    for_own_chunks<Kept<0>>(x.cols, [&](int, std::int64_t col) {
      Values unused[kSums] = {}, dw{};
      chunk(col, v, g, unused, dw);
      store(dx, row, col, slope_of<Norm>(v, g, sums, width, of.rstd), 1);
    });
  }
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

// norm(std::type_identity<Y>) makes the Norm for BF16 matrices of that type. means: nullptr without kCentred.
template <typename MakeNorm>
void run_norm_forward(const DeviceMatrix& x, bool plain, MakeNorm norm, float eps, const DeviceMatrix& y,
                      float* means, float* rstds, float* amax, cudaStream_t stream) {
  with_row_types(
      x, plain && is_bf16(y), [&]<typename X, typename Y>(const X& typed_x, std::type_identity<Y> type) {
        const auto made = norm(type);
        using Norm = std::decay_t<decltype(made)>;
        with_kept_chunks<kIsTyped<X>>(x.cols, [&]<typename K>(K) {
          const auto kernel = norm_forward_kernel<K, Norm, X, Y>;
          const int threads = row_threads(x.cols);
          const int blocks = resident_blocks(reinterpret_cast<const void*>(kernel), threads, x.rows);
          kernel<<<blocks, threads, 0, stream>>>(typed_x, made, eps, Y(y), means, rstds, amax);
        });
      });
}

// The same of backward. rows_per_block == 0: as many as share the rows among the blocks that run at once.
template <typename MakeNorm>
void run_norm_backward(const DeviceMatrix& x, bool plain, MakeNorm norm, const float* means,
                       const float* rstds, const DeviceMatrix& dy, const DeviceMatrix& dx,
                       std::int64_t rows_per_block, float* partial, cudaStream_t stream) {
  const int threads = row_threads(x.cols);
  const auto blocks_of = [&](const auto kernel) {
    if (rows_per_block == 0) {
      const std::int64_t at_once = resident_blocks(reinterpret_cast<const void*>(kernel), threads, x.rows);
      rows_per_block = (x.rows + at_once - 1) / at_once;
    }
    return static_cast<unsigned>((x.rows + rows_per_block - 1) / rows_per_block);
  };
  plain = plain && is_bf16(dy) && is_bf16(dx);
  with_row_types(x, plain, [&]<typename X, typename Y>(const X& typed_x, std::type_identity<Y> type) {
    with_kept_chunks<kIsTyped<X>>(x.cols, [&]<typename K>(K) {
      if constexpr (K::chunks > 0) {
        const auto made = norm(type);
        const auto kernel = norm_backward_kernel<K, std::decay_t<decltype(made)>, X, Y>;
        kernel<<<blocks_of(kernel), threads, 0, stream>>>(typed_x, made, means, rstds, Y(dy), Y(dx),
                                                          rows_per_block, partial);
      } else {
        const auto made = norm(std::type_identity<DeviceMatrix>{});
        const auto kernel = norm_backward_by_reading_kernel<std::decay_t<decltype(made)>>;
        const unsigned blocks = blocks_of(kernel);
        kernel<<<blocks, threads, 0, stream>>>(x, made, means, rstds, dy, dx, rows_per_block, partial);
      }
    });
  });
}

}  // namespace coat::kernels::cuda
