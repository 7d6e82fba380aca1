// Normal random numbers that depend on their key alone: not on the device, the order of calls or the number
// of threads.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace coat {

// Fills an FP32 tensor with normal(0, deviation). Element i takes its number from Philox keyed by (seed,
// stream, i).
void fill_normal(const at::Tensor& tensor, double deviation, std::uint64_t seed, std::uint32_t stream);

}  // namespace coat
