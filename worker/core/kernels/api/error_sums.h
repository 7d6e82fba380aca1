// What measured operations tell of the error of what they store.
#pragma once

#include <array>
#include <cstddef>

namespace coat::kernels {

// Buckets of expansion exponents: below 0.5, below 1, ..., the last open (16 k is 255 at most).
inline constexpr std::size_t kExponentBuckets = 10;
constexpr double exponent_bucket_end(std::size_t bucket) {
  const double ends[kExponentBuckets] = {0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16};
  return ends[bucket];
}
constexpr std::size_t exponent_bucket(double k) {
  std::size_t bucket = 0;
  while (bucket + 1 < kExponentBuckets && k >= exponent_bucket_end(bucket)) ++bucket;
  return bucket;
}

// Sums over elements of the error of a stored tensor against what it was made from; accumulated, so that one
// struct can hold a tensor class.
struct ErrorSums {
  double error_squared = 0;
  double reference_squared = 0;
  double saturated = 0;    // |code| is the largest finite one although |x / scale| rounds beyond it
  double underflowed = 0;  // x != 0 became 0
  double elements = 0;
  // Of moments that expand: the exponents k of their groups.
  double k_sum = 0;
  double k_groups = 0;
  std::array<double, kExponentBuckets> k_histogram{};  // groups by exponent_bucket(k)

  void add(const ErrorSums& other) {
    error_squared += other.error_squared;
    reference_squared += other.reference_squared;
    saturated += other.saturated;
    underflowed += other.underflowed;
    elements += other.elements;
    k_sum += other.k_sum;
    k_groups += other.k_groups;
    for (std::size_t i = 0; i < k_histogram.size(); ++i) k_histogram[i] += other.k_histogram[i];
  }
};

}  // namespace coat::kernels
