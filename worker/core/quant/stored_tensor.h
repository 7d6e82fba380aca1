// A matrix in a storage format that owns its memory: what layers save for backward.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/core/quant/matrix.h"

namespace coat {

struct StoredTensor {
  at::Tensor data;   // [rows, cols]; FP8 codes as uint8
  at::Tensor scale;  // undefined for Scaling::kNone
  TensorFormat format;

  bool defined() const { return data.defined(); }
  std::int64_t bytes() const;  // payload and scales
  Matrix view();
  ConstMatrix view() const;
};

// Uninitialised memory for [rows, cols] on `device`.
StoredTensor empty_stored(const TensorFormat& format, std::int64_t rows, std::int64_t cols,
                          at::Device device);

// A BF16 or FP32 tensor [rows, cols] as a stored tensor without scales; shares its memory.
StoredTensor as_stored(const at::Tensor& tensor);

at::ScalarType scalar_type_of(Format format);       // FP8: kByte
at::ScalarType scalar_type_of(ScaleFormat format);  // E8M0: kByte

}  // namespace coat
