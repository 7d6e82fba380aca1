#include "worker/core/layers/context.h"

#include <cstddef>
#include <stdexcept>

#include <ATen/ops/empty.h>

namespace coat::layers {
namespace {

template <typename M, typename Byte>
M sliced(const M& matrix, std::int64_t first, std::int64_t count) {
  M rows = matrix;
  rows.rows = count;
  rows.data = static_cast<Byte*>(matrix.data) + first * matrix.cols * bytes_of(matrix.format.format);
  const TensorFormat& format = matrix.format;
  if (first % format.rows_per_scale() != 0) throw std::logic_error("rows_of: begins inside a block");
  if (format.groups_per_row(matrix.cols) > 0) {
    rows.scale = static_cast<Byte*>(matrix.scale) +
                 format.scale_index(first, 0, matrix.cols) * bytes_of(format.scale_format);
  }
  return rows;
}

const char* label_of(TensorClass tensor_class) {
  switch (tensor_class) {
    case TensorClass::kActivation:
      return "activation";
    case TensorClass::kWeight:
      return "weight";
    case TensorClass::kGradient:
      return "gradient";
  }
  return "";
}

}  // namespace

at::Tensor empty_bf16(const LayerContext& context, std::int64_t rows, std::int64_t cols) {
  return at::empty({rows, cols}, at::TensorOptions(context.device).dtype(at::kBFloat16));
}

at::Tensor empty_fp32(const LayerContext& context, at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions(context.device).dtype(at::kFloat));
}

BoundedTensor empty_bounded(const LayerContext& context, std::int64_t rows, std::int64_t cols,
                            const TensorFormat& consumer) {
  BoundedTensor tensor{empty_bf16(context, rows, cols), {}};
  if (consumer.scaling == Scaling::kTensor) tensor.amax = empty_fp32(context, {1});
  return tensor;
}

Matrix matrix_of(const at::Tensor& tensor) { return as_stored(tensor).view(); }

Matrix rows_of(const Matrix& matrix, std::int64_t first, std::int64_t count) {
  return sliced<Matrix, std::byte>(matrix, first, count);
}

ConstMatrix rows_of(const ConstMatrix& matrix, std::int64_t first, std::int64_t count) {
  return sliced<ConstMatrix, const std::byte>(matrix, first, count);
}

void measure(const LayerContext& context, TensorClass tensor_class, const ConstMatrix& reference,
             const ConstMatrix& stored) {
  if (context.probe == nullptr) return;
  context.kernels.quantization_error(reference, stored, &context.probe->classes[label_of(tensor_class)],
                                     context.stream);
}

}  // namespace coat::layers
