// Test data: the same on every machine, a new sequence for every seed.
#pragma once

#include <cstdint>
#include <vector>

namespace coat::gpu_test {

enum class Fill {
  kSpread,  // signs, magnitudes over some powers of two, as in trained tensors
  kZeros,
  kConstant,
  kTiny,     // kSpread times 2^-50
  kSpecial,  // kSpread with NaN, infinities, subnormals, the largest finite values and zeros among them
};

std::vector<float> values(std::int64_t count, Fill fill, std::uint64_t seed);

// Integers in [-limit, limit].
std::vector<float> integers(std::int64_t count, int limit, std::uint64_t seed);

// In [0, limit).
std::vector<std::int32_t> indices(std::int64_t count, std::int32_t limit, std::uint64_t seed);

}  // namespace coat::gpu_test
