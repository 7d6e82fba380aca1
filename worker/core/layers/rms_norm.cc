#include "worker/core/layers/rms_norm.h"

namespace coat::layers {
namespace {

BoundedTensor normalise(const LayerContext& context, const Parameter& weight, float eps,
                        const StoredTensor& x, const TensorFormat& consumer, const at::Tensor& rstd) {
  const ConstMatrix input = x.view();
  BoundedTensor y = empty_bounded(context, input.rows, input.cols, consumer);
  context.kernels.rms_norm_forward({.x = input,
                                    .weight = weight.value.const_data_ptr<float>(),
                                    .eps = eps,
                                    .y = matrix_of(y.value),
                                    .rstd = rstd.mutable_data_ptr<float>(),
                                    .amax_out = y.mutable_amax_data()},
                                   context.stream);
  return y;
}

}  // namespace

std::int64_t RmsNormSaved::bytes() const { return x.bytes() + static_cast<std::int64_t>(rstd.nbytes()); }

BoundedTensor rms_norm_forward(const LayerContext& context, const Parameter& weight, float eps,
                               const StoredTensor& x, const TensorFormat& consumer, RmsNormSaved& saved) {
  saved = {x, empty_fp32(context, {x.view().rows})};
  return normalise(context, weight, eps, x, consumer, saved.rstd);
}

BoundedTensor rms_norm_recompute(const LayerContext& context, const Parameter& weight, float eps,
                                 const TensorFormat& consumer, const RmsNormSaved& saved) {
  return normalise(context, weight, eps, saved.x, consumer, saved.rstd);
}

at::Tensor rms_norm_backward(const LayerContext& context, Parameter& weight, const RmsNormSaved& saved,
                             const at::Tensor& dy) {
  at::Tensor dx = empty_bf16(context, dy.size(0), dy.size(1));
  context.kernels.rms_norm_backward({.x = saved.x.view(),
                                     .weight = weight.value.const_data_ptr<float>(),
                                     .rstd = saved.rstd.const_data_ptr<float>(),
                                     .dy = matrix_of(dy),
                                     .dx = matrix_of(dx),
                                     .dweight = weight.gradient.mutable_data_ptr<float>()},
                                    context.stream);
  return dx;
}

}  // namespace coat::layers
