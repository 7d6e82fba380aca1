// Normal random numbers that depend on their key alone: not on the device, the order of calls or the number
// of threads.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/core/base/parameter.h"

namespace coat {

// FP32 on the CPU, normal(0, deviation). Element i takes its number from Philox keyed by (seed, stream, i).
at::Tensor normal_values(at::IntArrayRef shape, double deviation, std::uint64_t seed, std::uint32_t stream);

// The parameter's value, rounded to what its storage holds, from FP32 on the CPU.
void set_value(Parameter& parameter, const at::Tensor& fp32);

}  // namespace coat
