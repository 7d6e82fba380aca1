// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel Random Numbers: As Easy as 1,
// 2, 3" (SC 2011): a pure function of (counter, key), so that a number depends on what it is for and never on
// who drew before.
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

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  auto& [c0, c1, c2, c3] = counter.word;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(c0, c1, c2, c3, key);
    key = philox_next_key(key);
  }
  return counter;
}

// [0, 1) with 24 bits, exact in FP32.
constexpr float philox_uniform(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}

// What a number of an optimizer step rounds. One word of 32 random bits serves all three for one element: the
// moments take a half each, the weight their exclusive or. Any two of the numbers are independent.
enum class RoundingUse : std::uint8_t { kMoment1, kMoment2, kWeight };

// 16 random bits.
constexpr std::uint32_t rounding_bits(std::uint32_t word, RoundingUse use) {
  const std::uint32_t low = word & 0xFFFFu, high = word >> 16;
  return use == RoundingUse::kMoment1 ? low : use == RoundingUse::kMoment2 ? high : low ^ high;
}

// The middle of the 2^-16th of (0, 1) that the bits name, exact in FP32: rounding up with `uniform < p` then
// has the probability p to the nearest 2^-16, never for p = 0 and always for p = 1.
constexpr float rounding_uniform(std::uint32_t word, RoundingUse use) {
  return static_cast<float>(static_cast<std::int32_t>(2 * rounding_bits(word, use) + 1)) * 0x1p-17f;
}

// The random words that round one parameter at one step. Element i of the whole parameter has word i % 4 of
// the block whose counter is (i / 4 low, i / 4 high, step low, parameter); the key is the seed, its upper
// half xor the upper half of the step.
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
  constexpr std::uint32_t word(std::uint64_t index) const {
    return philox4x32(counter(index / 4), key()).word[index % 4];
  }
};

}  // namespace coat
