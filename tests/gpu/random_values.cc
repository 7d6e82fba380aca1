#include "tests/gpu/random_values.h"

#include <cmath>
#include <limits>

namespace coat::gpu_test {
namespace {

// SplitMix64: small, fast, and good enough for test data.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(next() >> 1) % limit; }

 private:
  std::uint64_t state_;
};

// A sum of four uniform numbers, near to normal(0, 1), times 2^-3 .. 2^2.
float spread(Sequence& sequence) {
  const std::uint64_t bits = sequence.next();
  float sum = -2.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (14 * i)) & 0x3FFF) / 16384.0f;
  return std::ldexp(sum * 1.7f, static_cast<int>(bits >> 60) % 6 - 3);
}

float special(Sequence& sequence) {
  using Limits = std::numeric_limits<float>;
  const float choices[] = {Limits::quiet_NaN(),
                           Limits::infinity(),
                           -Limits::infinity(),
                           Limits::max(),
                           Limits::denorm_min(),
                           -Limits::min(),
                           0.0f,
                           -0.0f,
                           448.0f,
                           57344.0f,
                           464.0f,
                           -61440.0f};
  return choices[sequence.below(std::size(choices))];
}

}  // namespace

std::vector<float> values(std::int64_t count, Fill fill, std::uint64_t seed) {
  std::vector<float> out(static_cast<std::size_t>(count));
  Sequence sequence(seed);
  for (float& value : out) {
    value = fill == Fill::kConstant ? 0.7f : fill == Fill::kZeros ? 0.0f : spread(sequence);
    if (fill == Fill::kTiny) value = std::ldexp(value, -50);
    if (fill == Fill::kSpecial && sequence.below(5) == 0) value = special(sequence);
  }
  return out;
}

std::vector<float> integers(std::int64_t count, int limit, std::uint64_t seed) {
  std::vector<float> out(static_cast<std::size_t>(count));
  Sequence sequence(seed);
  for (float& value : out) value = static_cast<float>(sequence.below(2 * limit + 1) - limit);
  return out;
}

std::vector<std::int32_t> indices(std::int64_t count, std::int32_t limit, std::uint64_t seed) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  Sequence sequence(seed);
  for (std::int32_t& value : out) value = static_cast<std::int32_t>(sequence.below(limit));
  return out;
}

}  // namespace coat::gpu_test
