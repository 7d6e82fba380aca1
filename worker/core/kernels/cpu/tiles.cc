#include "worker/core/kernels/cpu/tiles.h"

#include <numeric>

namespace coat::kernels::cpu {
namespace {

constexpr std::int64_t kTileElements = 1024;

}  // namespace

TileGrid::TileGrid(std::int64_t rows, std::int64_t cols, std::initializer_list<TensorFormat> formats)
    : rows_(rows), cols_(cols), width_(kTileElements), tiles_per_row_(0) {
  std::int64_t unit = 1;
  bool by_rows = false;
  for (const TensorFormat& format : formats) {
    by_rows |= format.scaling != Scaling::kNone && format.scaling != Scaling::kTensor;
    if (format.scaling == Scaling::kGroup) unit = std::lcm(unit, std::int64_t{format.group});
  }
  if (by_rows) {
    width_ = unit * std::max<std::int64_t>(1, kTileElements / unit);
  } else {
    cols_ = rows_ * cols_;
    rows_ = cols_ > 0 ? 1 : 0;
  }
  width_ = std::max<std::int64_t>(1, std::min(width_, cols_));
  tiles_per_row_ = (cols_ + width_ - 1) / width_;
}

std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, cols));
}

}  // namespace coat::kernels::cpu
