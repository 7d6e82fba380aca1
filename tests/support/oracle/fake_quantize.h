// Rounding to a storage format with ATen's own number types: an independent statement of what the codecs must
// do.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/core/quant/format.h"
#include "worker/core/quant/recipe.h"

namespace coat::oracle {

// x as it reads after storage in `format`: same shape and dtype (FP32 or FP64). Groups run along the last
// dimension.
at::Tensor fake_quantize(const at::Tensor& x, const TensorFormat& format);

// fake_quantize(x, forward) whose gradient is rounded by `backward` and else passed through.
at::Tensor round_through(const at::Tensor& x, const TensorFormat& forward, const TensorFormat& backward);

}  // namespace coat::oracle
