#include <stdexcept>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    forward_kernel(const std::int32_t* tokens, DeviceMatrix weight, DeviceMatrix out, DeviceMatrix quantized,
                   Cover cover) {
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
    if (quantized.data != nullptr) store(quantized, row, col, v, cover.lanes_per_group);
  });
}

// One block a row and 256 chunks of columns. The block of a token's first row adds up all rows of that token,
// in order; the others leave. So each weight row has one writer and a fixed order.
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const std::int32_t* tokens, DeviceMatrix dy, DeviceMatrix dweight) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ std::uint32_t matches[kWarps];
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = tokens[first];
  if (token < 0 || token >= dweight.rows) return;
  int seen_before = 0;
  for (std::int64_t row = threadIdx.x; row < first; row += kThreads) seen_before |= tokens[row] == token;
  if (__syncthreads_or(seen_before)) return;
  const std::int64_t col = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kChunk;
  Values sum = load(dweight, token, col);
  for (std::int64_t base = first; base < dy.rows; base += kThreads) {
    const std::int64_t row = base + threadIdx.x;
    const std::uint32_t match = __ballot_sync(kWholeWarp, row < dy.rows && tokens[row] == token);
    if (threadIdx.x % kWarp == 0) matches[threadIdx.x / kWarp] = match;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) {
      for (std::uint32_t left = matches[warp]; left != 0; left &= left - 1) {
        const Values v = load(dy, base + warp * kWarp + __ffs(static_cast<int>(left)) - 1, col);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) sum.x[i] += v.x[i];
      }
    }
    __syncthreads();
  }
  store_codes(dweight, token, col, encode(Format::kFp32, sum));
}

DeviceMatrix weight_matrix(const float* data, std::int64_t vocab, std::int64_t cols, const char* operation) {
  return input({data, nullptr, {Format::kFp32, Scaling::kNone}, vocab, cols}, operation);
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "embedding_forward";
  const DeviceMatrix out = bf16_output(args.out, kName);
  const DeviceMatrix quantized =
      args.quantized.data != nullptr ? output(args.quantized, kName) : DeviceMatrix{};
  if (quantized.data != nullptr) {
    require_same_shape(out, quantized, kName);
    if (quantized.scaling == Scaling::kTensor) {
      throw std::logic_error("embedding_forward: quantized cannot have one scale for the tensor");
    }
  }
  if (out.rows == 0 || out.cols == 0) return;
  const DeviceMatrix weight = weight_matrix(args.weight, args.vocab, out.cols, kName);
  const Cover whole = cover(out.rows, out.cols, quantized);
  forward_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(args.tokens, weight, out,
                                                                               quantized, whole);
  check_launch(kName);
}

void embedding_backward(const EmbeddingBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "embedding_backward";
  const DeviceMatrix dy = bf16_input(args.dy, kName);
  if (dy.rows == 0 || dy.cols == 0) return;
  const DeviceMatrix dweight = weight_matrix(args.dweight, args.vocab, dy.cols, kName);
  constexpr std::int64_t kColsPerBlock = std::int64_t{kThreads} * kChunk;
  const dim3 grid(static_cast<unsigned>(dy.rows),
                  static_cast<unsigned>((dy.cols + kColsPerBlock - 1) / kColsPerBlock));
  backward_kernel<<<grid, kThreads, 0, stream>>>(args.tokens, dy, dweight);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
