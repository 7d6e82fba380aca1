#include "worker/core/model/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "worker/core/quant/philox.h"

namespace coat {
namespace {

// Sets these numbers apart from those that round moments, whose counters end in 2 * parameter id (+ 1).
constexpr std::uint32_t kInitialisation = 0x80000000u;

// Four numbers of a block by Box and Muller's transform, in FP64.
void normal_block(std::uint64_t block, std::uint64_t seed, std::uint32_t stream, float (&out)[4]) {
  const PhiloxKey key{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
  const PhiloxBlock counter{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0,
                             kInitialisation | stream}};
  const PhiloxBlock random = philox4x32(counter, key);
  for (int pair = 0; pair < 2; ++pair) {
    const double u = (random.word[2 * pair] + 0.5) * 0x1p-32;
    const double angle = 2 * std::numbers::pi * (random.word[2 * pair + 1] * 0x1p-32);
    const double radius = std::sqrt(-2 * std::log(u));
    out[2 * pair] = static_cast<float>(radius * std::cos(angle));
    out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace

void fill_normal(const at::Tensor& tensor, double deviation, std::uint64_t seed, std::uint32_t stream) {
  const at::Tensor host = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kFloat));
  float* values = host.mutable_data_ptr<float>();
  const std::int64_t elements = host.numel();
  const auto scale = static_cast<float>(deviation);
  constexpr std::int64_t kGrain = 1 << 12;
  at::parallel_for(0, (elements + 3) / 4, kGrain, [&](std::int64_t begin, std::int64_t end) {
    float block[4];
    for (std::int64_t b = begin; b < end; ++b) {
      normal_block(static_cast<std::uint64_t>(b), seed, stream, block);
      const std::int64_t count = std::min<std::int64_t>(4, elements - 4 * b);
      for (std::int64_t i = 0; i < count; ++i) values[4 * b + i] = scale * block[i];
    }
  });
  tensor.copy_(host);
}

}  // namespace coat
