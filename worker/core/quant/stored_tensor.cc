#include "worker/core/quant/stored_tensor.h"

#include <stdexcept>

#include <ATen/ops/empty.h>

namespace coat {

at::ScalarType scalar_type_of(Format format) {
  switch (format) {
    case Format::kFp32:
      return at::kFloat;
    case Format::kBf16:
      return at::kBFloat16;
    case Format::kE4M3:
    case Format::kE5M2:
      return at::kByte;
  }
  throw std::logic_error("unknown number format");
}

at::ScalarType scalar_type_of(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kFp32:
      return at::kFloat;
    case ScaleFormat::kBf16:
    case ScaleFormat::kBf16Up:
      return at::kBFloat16;
    case ScaleFormat::kE8M0:
      return at::kByte;
  }
  throw std::logic_error("unknown scale format");
}

std::int64_t StoredTensor::bytes() const {
  if (!defined()) return 0;
  return static_cast<std::int64_t>(data.nbytes()) +
         (scale.defined() ? static_cast<std::int64_t>(scale.nbytes()) : 0);
}

Matrix StoredTensor::view() {
  if (!defined()) return {};
  return {data.data_ptr(), scale.defined() ? scale.data_ptr() : nullptr, format, data.size(0), data.size(1)};
}

ConstMatrix StoredTensor::view() const {
  if (!defined()) return {};
  return {data.const_data_ptr(), scale.defined() ? scale.const_data_ptr() : nullptr, format, data.size(0),
          data.size(1)};
}

StoredTensor empty_stored(const TensorFormat& format, std::int64_t rows, std::int64_t cols,
                          at::Device device) {
  StoredTensor tensor;
  tensor.format = format;
  const auto options = at::TensorOptions().device(device);
  tensor.data = at::empty({rows, cols}, options.dtype(scalar_type_of(format.format)));
  if (format.scaling != Scaling::kNone) {
    tensor.scale =
        at::empty({format.scale_count(rows, cols)}, options.dtype(scalar_type_of(format.scale_format)));
  }
  return tensor;
}

StoredTensor as_stored(const at::Tensor& tensor) {
  if (tensor.dim() != 2 || !tensor.is_contiguous()) {
    throw std::logic_error("a stored tensor is a contiguous matrix [rows, cols]");
  }
  StoredTensor stored;
  stored.data = tensor;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      stored.format.format = Format::kFp32;
      break;
    case at::kBFloat16:
      stored.format.format = Format::kBf16;
      break;
    default:
      throw std::logic_error("only FP32 and BF16 tensors can be stored without a scale");
  }
  return stored;
}

}  // namespace coat
