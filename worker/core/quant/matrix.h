// A row-major matrix in a storage format, as kernels see it: pointers and sizes, no ownership.
#pragma once

#include <cstdint>

#include "worker/core/quant/format.h"

namespace coat {

// data: [rows, cols] codes or values, contiguous. scale: TensorFormat::scale_count() values of scale_format,
// row-major; nullptr for Scaling::kNone. value = decode(code) * scale.
struct ConstMatrix {
  const void* data = nullptr;
  const void* scale = nullptr;
  TensorFormat format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

struct Matrix {
  void* data = nullptr;
  void* scale = nullptr;
  TensorFormat format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  operator ConstMatrix() const { return {data, scale, format, rows, cols}; }  // NOLINT: as T* to const T*
};

}  // namespace coat
