// A seeded permutation of 0..count-1 without a table: a Feistel network over the next power of four, walked
// until it lands inside. Any element is found from its position alone, so an order of data needs no state to
// go on from.
#pragma once

#include <cstdint>

namespace coat::data {

class Permutation {
 public:
  // Another (seed, stream) gives another permutation. count >= 1.
  Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t stream);
  // position < count.
  std::uint64_t operator()(std::uint64_t position) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;
  std::uint64_t count_;
  int half_bits_;
  std::uint64_t keys_[4];
};

}  // namespace coat::data
