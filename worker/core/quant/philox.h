// Philox4x32, the counter-based random generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2,
// 3" (SC 2011): a pure function of (counter, key), so that a number depends on what it is for and never on
// who drew before. Ten rounds are the generator's usual number, seven the fewest that its authors found to
// pass every test of BigCrush.
#pragma once

#include <cstdint>

namespace coat {

struct PhiloxBlock {
  std::uint32_t word[4];
};

struct PhiloxKey {
  std::uint32_t word[2];
};

inline constexpr int kPhiloxRounds = 10;

constexpr void philox_round(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3,
                            PhiloxKey key) {
  const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0;
  const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ key.word[0];
  c1 = static_cast<std::uint32_t>(product1);
  c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ key.word[1];
  c3 = static_cast<std::uint32_t>(product0);
}

constexpr PhiloxKey philox_next_key(PhiloxKey key) {
  return {{key.word[0] + 0x9E3779B9u, key.word[1] + 0xBB67AE85u}};
}

template <int kRounds = kPhiloxRounds>
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  auto& [c0, c1, c2, c3] = counter.word;
  for (int round = 0; round < kRounds; ++round) {
    philox_round(c0, c1, c2, c3, key);
    key = philox_next_key(key);
  }
  return counter;
}

// [0, 1) with 24 bits, exact in FP32.
constexpr float philox_uniform(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}

// An optimizer step spends 16 random bits an element, in one launch over billions: seven rounds for eight
// elements.
inline constexpr int kRoundingRounds = 7;

// Where the bits of element `index` of a parameter are: half `half` of word `word` of block `block`.
struct RoundingPlace {
  static constexpr std::uint64_t kElements = 8;  // of a block
  std::uint64_t block;
  std::uint32_t word, half;

  static constexpr RoundingPlace of(std::uint64_t index) {
    return {index / kElements, static_cast<std::uint32_t>(index % 4),
            static_cast<std::uint32_t>(index / 4 % 2)};
  }
};

constexpr std::uint32_t rounding_half(std::uint32_t word, std::uint32_t half) {
  return half == 0 ? word & 0xFFFFu : word >> 16;
}

// Both moments of an element round with its bits as they are: what one gains and the other gains then partly
// cancels in m / sqrt(v). Its weight takes them with their bytes exchanged, which correlates with the
// moments' by 2^-7.
constexpr std::uint32_t weight_rounding_bits(std::uint32_t bits) { return (bits & 0xFFu) << 8 | bits >> 8; }

// The middle of the 2^-16th of (0, 1) that 16 bits name, exact in FP32: rounding up with `uniform > 1 - p`
// then has the probability p to the nearest 2^-16, never for p = 0 and always for p = 1.
constexpr float rounding_uniform(std::uint32_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(2 * bits + 1)) * 0x1p-17f;
}

// The random numbers of one parameter at one step. The counter of a block is (block low, block high, step
// low, parameter); the key is the seed, its upper half xor the upper half of the step.
struct PhiloxStream {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t parameter = 0;

  constexpr PhiloxKey key() const {
    return {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>((seed ^ step) >> 32)}};
  }
  constexpr PhiloxBlock counter(std::uint64_t block) const {
    return {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
             static_cast<std::uint32_t>(step), parameter}};
  }
  // 32 bits for element `index`, of which four share a block.
  constexpr std::uint32_t word(std::uint64_t index) const {
    return philox4x32(counter(index / 4), key()).word[index % 4];
  }
  // The 16 bits that an optimizer step rounds element `index` with.
  constexpr std::uint32_t rounding_bits(std::uint64_t index) const {
    const RoundingPlace place = RoundingPlace::of(index);
    return rounding_half(philox4x32<kRoundingRounds>(counter(place.block), key()).word[place.word],
                         place.half);
  }
};

}  // namespace coat
