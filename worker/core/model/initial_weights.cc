#include "worker/core/model/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "worker/core/quant/philox.h"
#include "worker/core/quant/weight_format.h"

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

at::Tensor normal_values(at::IntArrayRef shape, double deviation, std::uint64_t seed, std::uint32_t stream) {
  const at::Tensor host = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
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
  return host;
}

void set_value(Parameter& parameter, const at::Tensor& fp32) {
  if (!parameter.residual.defined()) {
    parameter.value.copy_(fp32);
    return;
  }
  const at::Tensor upper = at::empty(fp32.sizes(), fp32.options().dtype(at::kBFloat16));
  const at::Tensor lower = at::empty(fp32.sizes(), fp32.options().dtype(at::kChar));
  const float* values = fp32.const_data_ptr<float>();
  auto* codes = static_cast<std::uint16_t*>(upper.mutable_data_ptr());
  auto* residuals = lower.mutable_data_ptr<std::int8_t>();
  for (std::int64_t i = 0; i < fp32.numel(); ++i) {
    const SplitWeight split = split_weight(values[i]);
    codes[i] = split.bf16;
    residuals[i] = split.residual;
  }
  parameter.value.copy_(upper);
  parameter.residual.copy_(lower);
}

}  // namespace coat
