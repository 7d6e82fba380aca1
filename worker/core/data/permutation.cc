#include "worker/core/data/permutation.h"

#include <bit>
#include <stdexcept>

namespace coat::data {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t stream)
    : count_(count), half_bits_((std::bit_width(count - 1) + 1) / 2) {
  if (count == 0) throw std::invalid_argument("a permutation of nothing");
  if (half_bits_ == 0) half_bits_ = 1;
  std::uint64_t key = mix(seed) ^ mix(~stream);
  for (std::uint64_t& round : keys_) round = key = mix(key);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (mix(right ^ key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

// The network permutes at most 4 * count values; following its cycle from inside leads back inside, after 4
// steps at most on average.
std::uint64_t Permutation::operator()(std::uint64_t position) const {
  std::uint64_t value = encrypt(position);
  while (value >= count_) value = encrypt(value);
  return value;
}

}  // namespace coat::data
