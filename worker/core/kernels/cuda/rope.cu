#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxHalf = 256;

// Radians per position of each pair, from the host in FP64 so that the angles are those of the CPU.
struct Frequencies {
  double value[kMaxHalf];
};

// The angle's sine and cosine of one pair, as the CPU has them.
struct alignas(8) Turn {
  float cosine, sine;
};
__device__ Turn turn_of(std::int64_t position, double frequency, bool inverse) {
  double sine, cosine;
  sincos(static_cast<double>(position) * frequency, &sine, &cosine);
  return {static_cast<float>(cosine), static_cast<float>(inverse ? -sine : sine)};
}

__device__ void rotate(float& low, float& high, const Turn& turn) {
  const float a = low, b = high;
  low = a * turn.cosine - b * turn.sine;
  high = b * turn.cosine + a * turn.sine;
}

// Of any head size: one thread a row and pair, which it turns in every head.
__global__ void __launch_bounds__(kThreads)
    rope_pairs_kernel(DeviceMatrix x, std::int64_t heads, std::int64_t half, std::int64_t sequence_length,
                      bool inverse, float* amax, const __grid_constant__ Frequencies frequencies) {
  std::uint32_t largest = 0;  // as a BF16 code
  const std::int64_t total = x.rows * half;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / half, pair = i % half;
    const Turn turn = turn_of(row % sequence_length, frequencies.value[pair], inverse);
    std::uint16_t* low = static_cast<std::uint16_t*>(x.data) + row * x.cols + pair;
    for (std::int64_t head = 0; head < heads; ++head, low += 2 * half) {
      float a = decode_bf16(low[0]), b = decode_bf16(low[half]);
      rotate(a, b, turn);
      low[0] = encode_bf16(a);
      low[half] = encode_bf16(b);
      largest = max(largest, max(low[0] & 0x7FFFu, low[half] & 0x7FFFu));
    }
  }
  join_amax(amax, largest << 16);
}

// What 16-byte accesses need: the chunks of a head's lower half, each with its partner in the upper half.
constexpr int kRowsAtOnce = 4;

// kRowsAtOnce rows a block. It finds their angles once, for all heads, while the first elements are on their
// way; a thread then turns the same chunk of every row.
__global__ void __launch_bounds__(kThreads, 3)
    rope_chunks_kernel(DeviceMatrix x, int heads, int half, std::uint32_t sequence_length, bool inverse,
                       float* amax, const __grid_constant__ Frequencies frequencies) {
  // Two pairs' turns a place; [row][place of 4 within a chunk][chunk], which neighbouring lanes read side by
  // side.
  __shared__ float4 turns[kRowsAtOnce][kMaxHalf / 2];
  const int chunks = half / kChunk, chunks_of_row = heads * chunks;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kRowsAtOnce;
  const int rows = static_cast<int>(x.rows - first_row < kRowsAtOnce ? x.rows - first_row : kRowsAtOnce);
  std::uint32_t halves = 0;
  bool found = false;
  for (int begin = 0; begin < chunks_of_row; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x), chunk = i % chunks;
    uint4* low = reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(x.data) + first_row * x.cols +
                                          i / chunks * 2 * half + chunk * kChunk);
    uint4* high = reinterpret_cast<uint4*>(reinterpret_cast<std::uint16_t*>(low) + half);
    const std::int64_t stride = x.cols / kChunk;
    uint4 a[kRowsAtOnce], b[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= rows || i >= chunks_of_row) continue;
      a[r] = low[r * stride];
      b[r] = high[r * stride];
    }
    if (!found) {
      for (int t = static_cast<int>(threadIdx.x); t < rows * half; t += kThreads) {
        const int row = t / half, pair = t % half;
        const std::uint32_t position = static_cast<std::uint64_t>(first_row + row) % sequence_length;
        const int place = pair % kChunk / 2 * chunks + pair / kChunk;
        reinterpret_cast<Turn*>(&turns[row][place])[pair % 2] =
            turn_of(position, frequencies.value[pair], inverse);
      }
      __syncthreads();
      found = true;
    }
    if (i >= chunks_of_row) continue;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= rows) continue;
      Values lower = decode_words(a[r]), upper = decode_words(b[r]);
#pragma unroll
      for (int j = 0; j < kChunk; j += 2) {
        const float4 two = turns[r][j / 2 * chunks + chunk];
        rotate(lower.x[j], upper.x[j], {two.x, two.y});
        rotate(lower.x[j + 1], upper.x[j + 1], {two.z, two.w});
      }
      const uint4 low_words = encode_words(lower), high_words = encode_words(upper);
      low[r * stride] = low_words;
      high[r * stride] = high_words;
      halves = larger_halves(larger_halves(halves, low_words), high_words);
    }
  }
  join_amax(amax, magnitude_of_halves(halves));
}

}  // namespace

void rope(const RopeArgs& args, cudaStream_t stream) {
  const DeviceMatrix x = bf16_output(args.x, "rope");
  if (args.head_dim % 2 != 0) throw std::logic_error("rope: head_dim must be even");
  if (args.sequence_length <= 0) throw std::logic_error("rope: sequence_length must be positive");
  if (x.cols != args.heads * args.head_dim)
    throw std::logic_error("rope: x must have heads * head_dim columns");
  const std::int64_t half = args.head_dim / 2;
  if (half > kMaxHalf) {
    throw UnsupportedError("rope: a head of " + std::to_string(args.head_dim) +
                           " has no CUDA version; at most 512");
  }
  if (x.rows == 0 || x.cols == 0) return clear_amax(args.amax_out, "rope", stream);
  Frequencies frequencies{};
  for (std::int64_t i = 0; i < half; ++i) {
    frequencies.value[i] =
        std::pow(static_cast<double>(args.theta), -static_cast<double>(i) / static_cast<double>(half));
  }
  const bool fits_32_bits = x.cols <= std::numeric_limits<int>::max() &&
                            args.sequence_length <= std::numeric_limits<std::uint32_t>::max();
  if (is_bf16(x) && half % kChunk == 0 && fits_32_bits) {
    const auto blocks = static_cast<unsigned>((x.rows + kRowsAtOnce - 1) / kRowsAtOnce);
    rope_chunks_kernel<<<blocks, kThreads, 0, stream>>>(
        x, static_cast<int>(args.heads), static_cast<int>(half),
        static_cast<std::uint32_t>(args.sequence_length), args.inverse, args.amax_out, frequencies);
  } else {
    rope_pairs_kernel<<<blocks_for(x.rows * half, kThreads), kThreads, 0, stream>>>(
        x, args.heads, half, args.sequence_length, args.inverse, args.amax_out, frequencies);
  }
  check_launch("rope");
}

}  // namespace coat::kernels::cuda
