// Sums in an order that the number of terms alone decides, in lanes that vectorise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coat::kernels::cpu {

// term(0) + ... + term(n - 1): term i goes to lane i % 2048, each lane adds its terms in order from 0. Then
// lanes are added in groups of 8 by pairs, groups in sets of 32 by halves, and sets in order: what a block of
// 256 threads does that hold 8 lanes each (kernels/cuda/lane_sum.cuh).
template <typename Term>
inline float lane_sum(std::int64_t n, Term term) {
  constexpr std::int64_t kLanes = 2048, kGroup = 8, kSet = 32;
  alignas(64) float lane[kLanes];
  const std::int64_t used = std::min(n, kLanes);
  const std::int64_t sets = (used + kGroup * kSet - 1) / (kGroup * kSet);
  for (std::int64_t i = 0; i < used; ++i) lane[i] = 0.0f + term(i);
  std::fill(lane + used, lane + sets * kGroup * kSet, 0.0f);
  for (std::int64_t base = kLanes; base < n; base += kLanes) {
    const std::int64_t count = std::min(n - base, kLanes);
    for (std::int64_t i = 0; i < count; ++i) lane[i] += term(base + i);
  }
  float total = 0.0f;
  for (std::int64_t set = 0; set < sets; ++set) {
    float group[kSet];
    for (std::int64_t g = 0; g < kSet; ++g) {
      const float* x = lane + (set * kSet + g) * kGroup;
      group[g] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    }
    for (std::int64_t width = kSet / 2; width > 0; width /= 2) {
      for (std::int64_t j = 0; j < width; ++j) group[j] += group[j + width];
    }
    total += group[0];
  }
  return total;
}

// values[i] in lane i % kLanes, each lane in order from 0, and the lanes by halves: what as many threads do.
template <std::size_t kLanes>
double sum_in_lanes(const std::vector<double>& values) {
  double lane[kLanes] = {};
  for (std::size_t i = 0; i < values.size(); ++i) lane[i % kLanes] += values[i];
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

}  // namespace coat::kernels::cpu
