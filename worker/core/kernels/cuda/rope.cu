#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

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
struct Turn {
  float cosine, sine;
};
__device__ Turn turn_of(std::int64_t position, double frequency, bool inverse) {
  double sine, cosine;
  sincos(static_cast<double>(position) * frequency, &sine, &cosine);
  return {static_cast<float>(cosine), static_cast<float>(inverse ? -sine : sine)};
}

__device__ void rotate(std::uint16_t& low, std::uint16_t& high, const Turn& turn) {
  const float a = decode_bf16(low), b = decode_bf16(high);
  low = encode_bf16(a * turn.cosine - b * turn.sine);
  high = encode_bf16(b * turn.cosine + a * turn.sine);
}

// kPairs neighbouring pairs, as they lie in memory.
template <int kPairs>
struct alignas(2 * kPairs) Pairs {
  std::uint16_t x[kPairs];
};

// One thread a row and kPairs pairs: it finds the angles once and turns those pairs in every head, four heads
// at a time, so that eight loads are in flight.
template <int kPairs>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(DeviceMatrix x, std::int64_t heads, std::int64_t half, std::int64_t sequence_length,
                bool inverse, float* amax, const __grid_constant__ Frequencies frequencies) {
  constexpr int kHeads = 4;
  std::uint32_t largest = 0;  // as a BF16 code
  const auto per_row = static_cast<std::uint32_t>(half / kPairs);
  const std::int64_t total = x.rows * per_row;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / per_row, pair = i % per_row * kPairs;
    Turn turns[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      turns[j] = turn_of(row % sequence_length, frequencies.value[pair + j], inverse);
    }
    std::uint16_t* low = static_cast<std::uint16_t*>(x.data) + row * x.cols + pair;
    for (std::int64_t head = 0; head < heads; head += kHeads) {
      Pairs<kPairs> a[kHeads], b[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (head + h >= heads) continue;
        const std::uint16_t* at = low + (head + h) * 2 * half;
        a[h] = *reinterpret_cast<const Pairs<kPairs>*>(at);
        b[h] = *reinterpret_cast<const Pairs<kPairs>*>(at + half);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (head + h >= heads) continue;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          rotate(a[h].x[j], b[h].x[j], turns[j]);
          largest = max(largest, max(a[h].x[j] & 0x7FFFu, b[h].x[j] & 0x7FFFu));
        }
        std::uint16_t* at = low + (head + h) * 2 * half;
        *reinterpret_cast<Pairs<kPairs>*>(at) = a[h];
        *reinterpret_cast<Pairs<kPairs>*>(at + half) = b[h];
      }
    }
  }
  join_amax(amax, largest << 16);
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
  clear_amax(args.amax_out, "rope", stream);
  if (x.rows == 0 || x.cols == 0) return;
  Frequencies frequencies{};
  for (std::int64_t i = 0; i < half; ++i) {
    frequencies.value[i] =
        std::pow(static_cast<double>(args.theta), -static_cast<double>(i) / static_cast<double>(half));
  }
  const auto run = [&]<int kPairs>(std::integral_constant<int, kPairs>) {
    rope_kernel<kPairs><<<blocks_for(x.rows * half / kPairs, kThreads), kThreads, 0, stream>>>(
        x, args.heads, half, args.sequence_length, args.inverse, args.amax_out, frequencies);
  };
  const bool aligned = half % 2 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 4 == 0;
  if (aligned) {
    run(std::integral_constant<int, 2>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
  check_launch("rope");
}

}  // namespace coat::kernels::cuda
