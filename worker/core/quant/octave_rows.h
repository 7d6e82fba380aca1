// Which n a group of octave codes takes (octave_code.h).
#pragma once

#include <array>

#include "worker/core/quant/octave_code.h"

namespace coat {

// Of one kind of codes: `top` is 127 (with signs) or 255. Thread-safe.
class OctaveRows {
 public:
  static const OctaveRows& of(int top);

  // [n]: the smallest ratio |x| / amax that has code 1 at least when it is rounded down, in n and in all
  // rows below it: never falling. 0 for the first row and below it, where what is smaller is code 1 too.
  const std::array<float, kOctaveRows + 1>& reach() const { return reach_; }

 private:
  explicit OctaveRows(int top);
  std::array<float, kOctaveRows + 1> reach_;
};

// The largest n whose reach holds the smallest ratio of a group.
constexpr int choose_octave_row(const float* reach, float smallest_ratio) {
  int row = 0;
  for (int step = 64; step > 0; step >>= 1) row += reach[row + step] <= smallest_ratio ? step : 0;
  return row;
}

}  // namespace coat
