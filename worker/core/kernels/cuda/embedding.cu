#include <limits>
#include <stdexcept>
#include <type_traits>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/fetched.cuh"
#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kAtOnce = 2;

// A chunk of a token's row of the table; NaN where there is no such token.
template <typename Table>
__device__ Values embedded(const Table& weight, std::int64_t token, std::int64_t col) {
  if (token >= 0 && token < weight.rows) return load(weight, token, col);
  Values v;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = col + i < weight.cols ? __int_as_float(0x7FC00000) : 0.0f;
  return v;
}

// Over a Cover of rows, or OneRow of outputs that are one row, of which the table's width is a part.
template <typename Span, typename Table, typename Out, typename Quantized>
__global__ void __launch_bounds__(kChunkThreads)
    forward_kernel(const std::int32_t* tokens, std::int64_t rows, Table weight, Out out, Quantized quantized,
                   Span span) {
  for_chunks_at_once<kAtOnce>(
      span,
      [&](std::int64_t row, std::int64_t col, int further) {
        Position at{row, col};
        if constexpr (std::is_same_v<Span, OneRow>) {
          at = position_of(Cover{rows, weight.cols / kChunk, 1}, (col + further) / kChunk);
        }
        return at.row < rows ? embedded(weight, tokens[at.row], at.col) : Values{};
      },
      [&](std::int64_t row, std::int64_t col, const Values& v, auto) {
        store(out, row, col, v, 1);
        if constexpr (kCanExist<Quantized>) {
          if (quantized.data != nullptr) store(quantized, row, col, v, span.lanes_per_group);
        }
      });
}

// Where the rows of a token are, for the tokens of a vocabulary.
constexpr int kListed = 8;
struct alignas(8) Occurrences {
  std::int32_t count;         // of rows; 0 at first
  std::int32_t from_the_end;  // the first of them, as the number of all rows minus its own; 0 at first
};
struct TokenRows {
  Occurrences* occurrences;  // one a token
  std::int32_t* listed;      // kListed rows a token, in any order
};

__global__ void __launch_bounds__(kThreads)
    list_rows_kernel(const std::int32_t* tokens, std::int32_t rows, std::int64_t vocab, TokenRows of) {
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= rows) return;
  const std::int32_t token = tokens[row];
  if (token < 0 || token >= vocab) return;
  const std::int32_t place = atomicAdd(&of.occurrences[token].count, 1);
  atomicMax(&of.occurrences[token].from_the_end, rows - row);
  if (place < kListed) of.listed[std::int64_t{token} * kListed + place] = row;
}

// Up to kListed rows, sorted; what is missing is the largest number.
struct SortedRows {
  std::int32_t row[kListed];
};
__device__ SortedRows sorted_rows(const std::int32_t* listed, int count) {
  SortedRows rows;
#pragma unroll
  for (int i = 0; i < kListed; ++i)
    rows.row[i] = i < count ? listed[i] : std::numeric_limits<std::int32_t>::max();
    // Neighbours in turn, as often as there are rows.
#pragma unroll
  for (int pass = 0; pass < kListed; ++pass) {
#pragma unroll
    for (int i = pass % 2; i + 1 < kListed; i += 2) {
      const std::int32_t low = min(rows.row[i], rows.row[i + 1]), high = max(rows.row[i], rows.row[i + 1]);
      rows.row[i] = low;
      rows.row[i + 1] = high;
    }
  }
  return rows;
}

// sum += the rows of dy that `next(i)` names, in order, kAtOnce of them on their way at a time.
template <typename In, typename Next>
__device__ void add_rows(const In& dy, int count, std::int64_t col, Values& sum, Next next) {
  constexpr int kAtOnce = 4;
  for (int base = 0; base < count; base += kAtOnce) {
    Fetched<In> fetched[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i < count) fetched[i] = fetch(dy, next(base + i), col);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i >= count) continue;
      const Values v = decoded<In>(fetched[i]);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) sum.x[j] += v.x[j];
    }
  }
}

// Numbers of the rows base .. base + kScanned - 1 that have `token`, in order; how many there are. By the
// whole block.
constexpr int kScannedOfThread = 16, kScanned = kThreads * kScannedOfThread;
__device__ int scan_rows(const std::int32_t* tokens, std::int64_t base, std::int64_t rows, std::int32_t token,
                         std::int32_t (&found)[kScanned]) {
  __shared__ int of_warp[kThreads / kWarp];
  const std::int64_t first = base + threadIdx.x * kScannedOfThread;
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kScannedOfThread; ++i) {
    if (first + i < rows && tokens[first + i] == token) mine |= 1u << i;
  }
  int before = __popc(mine);  // of the lanes up to this one
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int below = __shfl_up_sync(kWholeWarp, before, offset);
    if (threadIdx.x % kWarp >= static_cast<unsigned>(offset)) before += below;
  }
  __syncthreads();  // the rows found before are added
  if (threadIdx.x % kWarp == kWarp - 1) of_warp[threadIdx.x / kWarp] = before;
  __syncthreads();
  int place = before - __popc(mine), all = 0;
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
    if (warp < threadIdx.x / kWarp) place += of_warp[warp];
    all += of_warp[warp];
  }
  for (; mine != 0; mine &= mine - 1) found[place++] = static_cast<std::int32_t>(first + __ffs(mine) - 1);
  __syncthreads();
  return all;
}

// One block a row and 256 chunks of columns: the block of a token's first row adds up all its rows, in order;
// the others leave. So each weight row has one writer and a fixed order.
template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads, kIsTyped<In> ? 5 : 1)
    backward_kernel(const std::int32_t* tokens, TokenRows of, In dy, Out dweight) {
  __shared__ std::int32_t found[kScanned];
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = tokens[first];
  if (token < 0 || token >= dweight.rows) return;
  const Occurrences seen = of.occurrences[token];
  if (dy.rows - seen.from_the_end != first) return;
  const std::int64_t col = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kChunk;
  const int inside = col < dy.cols ? 1 : 0;  // threads beyond the row's end help to scan
  Values sum = load(dweight, token, col);
  add_rows(dy, inside, col, sum, [&](int) { return first; });
  if (seen.count > kListed) {
    for (std::int64_t base = first + 1; base < dy.rows; base += kScanned) {
      const int here = scan_rows(tokens, base, dy.rows, token, found);
      add_rows(dy, inside * here, col, sum, [&](int i) { return found[i]; });
    }
  } else if (seen.count > 1) {
    const SortedRows rows = sorted_rows(of.listed + std::int64_t{token} * kListed, seen.count);
#pragma unroll
    for (int i = 1; i < kListed; ++i) {
      if (i < seen.count) add_rows(dy, inside, col, sum, [&](int) { return rows.row[i]; });
    }
  }
  store(dweight, token, col, sum, 1);
}

TokenRows list_rows(const std::int32_t* tokens, std::int32_t rows, std::int64_t vocab, cudaStream_t stream) {
  constexpr const char* kName = "embedding_backward";
  auto* occurrences =
      DeviceState::current().partial_sums().elements<Occurrences>((1 + kListed / 2) * vocab, kName);
  check(cudaMemsetAsync(occurrences, 0, static_cast<std::size_t>(vocab) * sizeof(Occurrences), stream),
        kName);
  const TokenRows of{occurrences, reinterpret_cast<std::int32_t*>(occurrences + vocab)};
  list_rows_kernel<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      tokens, rows, vocab, of);
  check_launch(kName);
  return of;
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "embedding_forward";
  const DeviceMatrix out = bf16_output(args.out, kName);
  const DeviceMatrix quantized =
      args.quantized.data != nullptr ? one_pass_output(args.quantized, kName) : DeviceMatrix{};
  if (quantized.data != nullptr) require_same_shape(out, quantized, kName);
  if (out.rows == 0 || out.cols == 0) return;
  const DeviceMatrix weight = input(args.weight, kName);
  if (weight.scaling != Scaling::kNone || weight.cols != out.cols) {
    throw std::logic_error("embedding_forward: weight has scales, or other columns than out");
  }
  const auto launch = [&](const auto& table, const auto& to, const auto& codes, const auto& span) {
    const auto kernel = forward_kernel<std::decay_t<decltype(span)>, std::decay_t<decltype(table)>,
                                       std::decay_t<decltype(to)>, std::decay_t<decltype(codes)>>;
    kernel<<<chunk_blocks<kAtOnce>(kernel, span), kChunkThreads, 0, stream>>>(args.tokens, out.rows, table,
                                                                              to, codes, span);
  };
  const auto with_table = [&](const auto& table) {
    const Bf16Matrix row(as_one_row(out));
    if (quantized.data == nullptr) return launch(table, row, NoMatrix{}, one_row(out));
    launch(table, row, GroupedE4M3(as_one_row(quantized)), one_row(out));
  };
  const bool typed = is_bf16(out) && (quantized.data == nullptr || is_grouped(quantized));
  if (typed && is_fp32(weight)) {
    with_table(Fp32Matrix(weight));
  } else if (typed && is_bf16(weight)) {
    with_table(Bf16Matrix(weight));
  } else {
    launch(weight, out, quantized, cover(out.rows, out.cols, quantized));
  }
  check_launch(kName);
}

void embedding_backward(const EmbeddingBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "embedding_backward";
  const DeviceMatrix dy = bf16_input(args.dy, kName);
  if (dy.rows == 0 || dy.cols == 0) return;
  const DeviceMatrix dweight =
      input({args.dweight, nullptr, {Format::kFp32, Scaling::kNone}, args.vocab, dy.cols}, kName);
  if (dy.rows > std::numeric_limits<int>::max()) throw std::logic_error("embedding_backward: too many rows");
  const TokenRows of = list_rows(args.tokens, static_cast<std::int32_t>(dy.rows), args.vocab, stream);
  constexpr std::int64_t kCols = std::int64_t{kThreads} * kChunk;
  const dim3 grid(static_cast<unsigned>(dy.rows), static_cast<unsigned>((dy.cols + kCols - 1) / kCols));
  if (is_bf16(dy) && is_fp32(dweight)) {
    backward_kernel<<<grid, kThreads, 0, stream>>>(args.tokens, of, Bf16Matrix(dy), Fp32Matrix(dweight));
  } else {
    backward_kernel<<<grid, kThreads, 0, stream>>>(args.tokens, of, dy, dweight);
  }
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
