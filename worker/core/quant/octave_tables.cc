#include "worker/core/quant/octave_tables.h"

#include <stdexcept>

namespace coat {
namespace {

void fill_levels(int top, OctaveTables& tables) {
  constexpr float kNever = 2.0f;  // above every ratio
  const auto& reach = OctaveRows::of(top).reach();
  tables.levels.fill({kNever, 0, 0, 0});
  std::size_t level = 0;
  for (int n = octave_first_row(top); n <= kOctaveRows; ++n) {
    const auto place = static_cast<std::size_t>(n);
    // A row that reaches no further than the next is not taken.
    if (n < kOctaveRows && reach[place + 1] == reach[place]) continue;
    const auto codes = static_cast<std::uint32_t>(n);
    tables.levels[level++] = {reach[place], codes, std::bit_cast<float>(octave_floor(top, n)),
                              (static_cast<std::uint32_t>(top) << 24) - kOneBits * (2 * codes)};
  }
}

void fill_buckets(OctaveTables& tables) {
  std::size_t level = 0;
  for (std::size_t bucket = 0; bucket < tables.first_level.size(); ++bucket) {
    const auto lowest = static_cast<std::uint32_t>(bucket) << OctaveTables::kBucketShift;
    const std::uint32_t highest = lowest + (1u << OctaveTables::kBucketShift) - 1;
    while (tables.levels[level + 1].reach <= std::bit_cast<float>(lowest)) ++level;
    tables.first_level[bucket] = static_cast<std::uint8_t>(level);
    const std::size_t beyond = level + OctaveTables::kMostInBucket + 1;
    if (beyond < tables.levels.size() && tables.levels[beyond].reach <= std::bit_cast<float>(highest)) {
      throw std::logic_error("octave codes: too many rows for one bucket of ratios");
    }
  }
}

}  // namespace

OctaveTables OctaveTables::of(int top) {
  OctaveTables tables{};
  for (int row = 0; row <= kOctaveRows; ++row) {
    const int n = octave_row_used(top, row);
    const std::uint32_t step = octave_step(n);
    const std::uint32_t base = top == 127 ? octave_floor(top, n) : kOneBits - octave_offset(step, top);
    tables.decoding[static_cast<std::size_t>(row)] = {step, base, octave_tail(top, n).stretch};
  }
  fill_levels(top, tables);
  fill_buckets(tables);
  return tables;
}

}  // namespace coat
