#include <cmath>
#include <stdexcept>
#include <string>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/matrix_io.cuh"
#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxHalf = 256;

// Radians per position of each pair, from the host in FP64 so that the angles are those of the CPU.
struct Frequencies {
  double value[kMaxHalf];
};

// One thread a row and pair: it finds the angle once and turns that pair in every head.
__global__ void __launch_bounds__(kThreads)
    rope_kernel(DeviceMatrix x, std::int64_t heads, std::int64_t half, std::int64_t sequence_length,
                bool inverse, const __grid_constant__ Frequencies frequencies) {
  const std::int64_t total = x.rows * half;
  std::uint16_t* data = static_cast<std::uint16_t*>(x.data);
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / half, pair = i % half;
    const double angle = static_cast<double>(row % sequence_length) * frequencies.value[pair];
    double exact_sine, exact_cosine;
    sincos(angle, &exact_sine, &exact_cosine);
    const float cosine = static_cast<float>(exact_cosine);
    const float sine = static_cast<float>(inverse ? -exact_sine : exact_sine);
    std::uint16_t* low = data + row * x.cols + pair;
    for (std::int64_t head = 0; head < heads; ++head, low += 2 * half) {
      const float a = decode_bf16(low[0]), b = decode_bf16(low[half]);
      low[0] = encode_bf16(a * cosine - b * sine);
      low[half] = encode_bf16(b * cosine + a * sine);
    }
  }
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
  if (x.rows == 0 || x.cols == 0) return;
  Frequencies frequencies{};
  for (std::int64_t i = 0; i < half; ++i) {
    frequencies.value[i] =
        std::pow(static_cast<double>(args.theta), -static_cast<double>(i) / static_cast<double>(half));
  }
  rope_kernel<<<blocks_for(x.rows * half, kThreads), kThreads, 0, stream>>>(
      x, args.heads, half, args.sequence_length, args.inverse, frequencies);
  check_launch("rope");
}

}  // namespace coat::kernels::cuda
