// How element-wise operations are cut into pieces of work: tiles of a row that fit the first-level cache and
// never split a scaling group. What a tile computes depends on the shape alone, so results do not depend on
// the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "worker/core/quant/matrix.h"

namespace coat::kernels::cpu {

struct Tile {
  std::int64_t row, col, n;
};

class TileGrid {
 public:
  // A grid over a matrix of that shape; `formats` are those of the matrices that are read or written tile by
  // tile. Without scales of rows among them the matrix is taken as one long row.
  TileGrid(std::int64_t rows, std::int64_t cols, std::initializer_list<TensorFormat> formats);

  std::int64_t count() const { return rows_ * tiles_per_row_; }
  std::int64_t width() const { return width_; }  // the largest n
  std::int64_t grain() const { return std::max<std::int64_t>(1, kElementsPerThread / width_); }
  Tile at(std::int64_t index) const {
    const std::int64_t row = index / tiles_per_row_;
    const std::int64_t col = index % tiles_per_row_ * width_;
    return {row, col, std::min(width_, cols_ - col)};
  }

 private:
  static constexpr std::int64_t kElementsPerThread = 16384;  // fewer are not worth a thread
  std::int64_t rows_, cols_, width_, tiles_per_row_;
};

// Rows a thread should take at least.
std::int64_t row_grain(std::int64_t cols);

// The maximum of magnitudes over threads; any order gives the same.
class SharedAmax {
 public:
  void update(std::int32_t bits) {
    std::int32_t seen = bits_.load(std::memory_order_relaxed);
    while (seen < bits && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  float value() const { return std::bit_cast<float>(bits_.load(std::memory_order_relaxed)); }
  void store_to(float* out) const {
    if (out != nullptr) *out = value();
  }

 private:
  std::atomic<std::int32_t> bits_{0};
};

}  // namespace coat::kernels::cpu
