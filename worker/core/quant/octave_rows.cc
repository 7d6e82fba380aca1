#include "worker/core/quant/octave_rows.h"

#include <algorithm>
#include <cmath>

namespace coat {
namespace {

bool has_code(int top, int n, float ratio) {
  const OctaveTail tail = octave_tail(top, n);
  return stochastic_octave_code(top, n, std::fma(ratio, tail.rest, tail.start), 0) >= 1;
}

// The smallest float with a code: positive floats are ordered as their bits are.
float smallest_with_code(int top, int n) {
  std::uint32_t without = 0, with = kOneBits;
  while (with - without > 1) {
    const std::uint32_t middle = without + (with - without) / 2;
    (has_code(top, n, std::bit_cast<float>(middle)) ? with : without) = middle;
  }
  return std::bit_cast<float>(with);
}

}  // namespace

OctaveRows::OctaveRows(int top) : reach_{} {
  for (int n = octave_first_row(top) + 1; n <= kOctaveRows; ++n) {
    const auto place = static_cast<std::size_t>(n);
    reach_[place] = std::max(reach_[place - 1], smallest_with_code(top, n));
  }
}

const OctaveRows& OctaveRows::of(int top) {
  static const OctaveRows with_signs(127), without(255);
  return top == 127 ? with_signs : without;
}

}  // namespace coat
