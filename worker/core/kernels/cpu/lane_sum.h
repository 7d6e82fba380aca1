// Sums in an order that the number of terms alone decides, in lanes that vectorise.
#pragma once

#include <cstdint>

namespace coat::kernels::cpu {

// term(0) + ... + term(n - 1): term i goes to lane i % 16; then the lanes are added pairwise.
template <typename Term>
inline float lane_sum(std::int64_t n, Term term) {
  constexpr std::int64_t kLanes = 16;
  float lane[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lane[j] += term(i + j);
  }
  for (std::int64_t j = 0; i < n; ++i, ++j) lane[j] += term(i);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

}  // namespace coat::kernels::cpu
