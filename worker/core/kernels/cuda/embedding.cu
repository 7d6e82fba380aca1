#include <limits>
#include <stdexcept>

#include <cub/device/device_radix_sort.cuh>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/lane_sum.cuh"
#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Table, typename Out, typename Quantized>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const std::int32_t* tokens, Table weight, Out out, Quantized quantized, Cover cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    Values v{};
    if (row < out.rows) {
      const std::int64_t token = tokens[row];
      v = load(weight, token >= 0 ? token : weight.rows, col);
      if (token < 0 || token >= weight.rows) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) v.x[i] = col + i < out.cols ? __int_as_float(0x7FC00000) : 0.0f;
      }
    }
    store(out, row, col, v, 1);
    if constexpr (kCanExist<Quantized>) {
      if (quantized.data != nullptr) store(quantized, row, col, v, cover.lanes_per_group);
    }
  });
}

__global__ void __launch_bounds__(kThreads) number_rows_kernel(std::int32_t* rows, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) rows[i] = i;
}

// Tokens sorted, and the rows that they stand in, equal tokens in order of their rows. One block a place and
// 256 chunks of columns: the block of a token's first place adds up all rows of that token, in order; the
// others leave. So each weight row has one writer and a fixed order.
template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const std::int32_t* tokens, const std::int32_t* rows, In dy, Out dweight) {
  constexpr int kAtOnce = 4;
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = tokens[first];
  if (token < 0 || token >= dweight.rows || (first > 0 && tokens[first - 1] == token)) return;
  const std::int64_t col = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kChunk;
  if (col >= dy.cols) return;
  Values sum = load(dweight, token, col);
  bool more = true;
  for (std::int64_t place = first; more; place += kAtOnce) {
    Values v[kAtOnce];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      more = more && place + i < dy.rows && tokens[place + i] == token;
      if (!more) continue;
      v[i] = load(dy, rows[place + i], col);
      count = i + 1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i >= count) continue;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) sum.x[j] += v[i].x[j];
    }
  }
  store(dweight, token, col, sum, 1);
}

// The tokens and their rows in the order that backward_kernel wants, in scratch memory.
struct SortedTokens {
  std::int32_t *tokens, *rows;
};
SortedTokens sort(const std::int32_t* tokens, int count, cudaStream_t stream) {
  constexpr const char* kName = "embedding_backward";
  std::size_t sorter_bytes = 0;
  std::int32_t* nothing = nullptr;
  check(cub::DeviceRadixSort::SortPairs(nullptr, sorter_bytes, tokens, nothing, nothing, nothing, count),
        kName);
  const std::size_t array = (static_cast<std::size_t>(count) * sizeof(std::int32_t) + 255) / 256 * 256;
  char* scratch = DeviceState::current().partial_sums().elements<char>(
      static_cast<std::int64_t>(3 * array + sorter_bytes), kName);
  auto* rows = reinterpret_cast<std::int32_t*>(scratch + 2 * array);
  const SortedTokens sorted{reinterpret_cast<std::int32_t*>(scratch),
                            reinterpret_cast<std::int32_t*>(scratch + array)};
  number_rows_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      rows, count);
  check_launch(kName);
  check(cub::DeviceRadixSort::SortPairs(scratch + 3 * array, sorter_bytes, tokens, sorted.tokens, rows,
                                        sorted.rows, count, 0, 32, stream),
        kName);
  return sorted;
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
  const Cover whole = cover(out.rows, out.cols, quantized);
  const int blocks = blocks_for(whole.total(), kThreads);
  const auto with_table = [&](const auto& table) {
    if (quantized.data == nullptr) {
      forward_kernel<<<blocks, kThreads, 0, stream>>>(args.tokens, table, Bf16Matrix(out), NoMatrix{}, whole);
    } else {
      forward_kernel<<<blocks, kThreads, 0, stream>>>(args.tokens, table, Bf16Matrix(out),
                                                      GroupedE4M3(quantized), whole);
    }
  };
  const bool typed = is_bf16(out) && (quantized.data == nullptr || is_grouped(quantized));
  if (typed && is_fp32(weight)) {
    with_table(Fp32Matrix(weight));
  } else if (typed && is_bf16(weight)) {
    with_table(Bf16Matrix(weight));
  } else {
    forward_kernel<<<blocks, kThreads, 0, stream>>>(args.tokens, weight, out, quantized, whole);
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
  const SortedTokens sorted = sort(args.tokens, static_cast<int>(dy.rows), stream);
  const int threads = row_threads(dy.cols);
  const std::int64_t cols_per_block = std::int64_t{threads} * kChunk;
  const dim3 grid(static_cast<unsigned>(dy.rows),
                  static_cast<unsigned>((dy.cols + cols_per_block - 1) / cols_per_block));
  if (is_bf16(dy) && is_fp32(dweight)) {
    backward_kernel<<<grid, threads, 0, stream>>>(sorted.tokens, sorted.rows, Bf16Matrix(dy),
                                                  Fp32Matrix(dweight));
  } else {
    backward_kernel<<<grid, threads, 0, stream>>>(sorted.tokens, sorted.rows, dy, dweight);
  }
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
