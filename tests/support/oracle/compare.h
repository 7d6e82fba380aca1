// How far one tensor lies from another, in FP64.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace coat::oracle {

// ||actual - expected|| / ||expected||; 0 where both vanish.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);
double cosine(const at::Tensor& a, const at::Tensor& b);
// ||a|| / ||b||
double norm_ratio(const at::Tensor& a, const at::Tensor& b);

// FP32 normal(0, deviation) from a generator of its own.
at::Tensor random_normal(at::IntArrayRef shape, double deviation, std::uint64_t seed);

}  // namespace coat::oracle
