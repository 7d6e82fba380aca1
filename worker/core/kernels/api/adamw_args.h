// The optimizer step: AdamW with decoupled decay on the old value (COAT.md 1.2), over many parameters at
// once.
//
// Per element, in FP32:
//   g = gradient * *gradient_scale
//   m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
//   value -= learning_rate * (m / ((sqrt(v) / sqrt(bias_correction2) + eps) * bias_correction1) + decay *
//   value)
// as value = keep value - m / (sqrt(v) / s + eps' / s), with s = learning_rate sqrt(bias_correction2) /
// bias_correction1 and eps' = eps sqrt(bias_correction2): the step's size costs nothing in the denominator.
// The value is updated from the new moments before they are quantized; quantization changes only what is
// stored for the next step. beta1 m of a quantized m is (beta1 amax) times what the code stands for relative
// to amax, added by one multiply-add (MomentTable::unstretched()); v likewise.
//
// Rounding takes its random numbers from PhiloxStream{seed, step, tensor.id} (quant/philox.h), element i of
// the tensor those of index first_index + i, so equal arguments give equal bits however a parameter is cut
// into tensors, as long as the cuts lie at multiples of both groups.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker/core/kernels/api/error_sums.h"
#include "worker/core/quant/moment_format.h"
#include "worker/core/quant/weight_format.h"

namespace coat::kernels {

// One moment of one tensor. FP32 moments use `data` alone.
struct MomentData {
  void* data = nullptr;  // FP32 values, or one code byte an element
  void* amax = nullptr;  // [groups] FP32 or BF16 (MomentFormat::amax_format)
  std::uint8_t* row =
      nullptr;  // [groups]: the row of MomentTable, 16 k for most codes; nullptr where none is stored
};

struct AdamWTensor {
  void* value = nullptr;            // FP32 or BF16 (AdamWArgs::weights)
  std::int8_t* residual = nullptr;  // of kBf16Residual
  const void* gradient = nullptr;   // FP32 or BF16 (AdamWArgs::gradient)
  std::int64_t elements = 0;
  MomentData m;
  MomentData v;
  bool decay = true;
  std::uint32_t id = 0;          // Parameter::id
  std::int64_t first_index = 0;  // of element 0 in the whole parameter, for a shard: keys the rounding
};

struct AdamWArgs {
  std::vector<AdamWTensor> tensors;  // all of the same formats
  MomentFormat moment1;
  MomentFormat moment2;
  WeightFormat weights = WeightFormat::kFp32;
  Format gradient = Format::kFp32;  // kFp32 or kBf16
  float learning_rate = 0;
  float beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta^step, from the host in FP64
  // Device: the clipping factor, as clip_factor() leaves it; nullptr: 1. NaN: the step is skipped, nothing is
  // written and nothing measured.
  const float* gradient_scale = nullptr;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

// A step's scalars as the element loops use them.
struct UpdateScalars {
  float beta1, beta2;
  float rest1;              // 1 - beta1; times the gradient scale: the factor of gradients
  float square;             // (1 - beta2) / (1 - beta1)^2
  float inverse_step, eps;  // 1 / s and eps' / s above; s = 0: such that the denominator is infinite
};
inline UpdateScalars update_scalars(const AdamWArgs& args) {
  const double root = std::sqrt(args.bias_correction2);
  const double rest1 = 1.0 - double{args.beta1}, rest2 = 1.0 - double{args.beta2};
  const double step = double{args.learning_rate} * root / args.bias_correction1;
  const auto per_step = [step](double x, float otherwise) {
    constexpr float kMost = std::numeric_limits<float>::max();
    return x < step * double{kMost} ? static_cast<float>(x / step) : otherwise;
  };
  return {args.beta1,
          args.beta2,
          static_cast<float>(rest1),
          static_cast<float>(rest2 / (rest1 * rest1)),
          per_step(1.0, std::numeric_limits<float>::max()),
          per_step(double{args.eps} * root, std::numeric_limits<float>::infinity())};
}
// What decay leaves of a value.
inline float value_kept(const AdamWArgs& args, bool decay) {
  return decay ? static_cast<float>(1.0 - double{args.learning_rate} * double{args.weight_decay}) : 1.0f;
}

// What a measured step adds up, over all elements: the stored moments against the FP32 ones that they were
// made from, and u = m / (sqrt(v) + eps) of both, in FP64.
struct AdamWErrors {
  ErrorSums moment1;
  ErrorSums moment2;
  ErrorSums update;
};

// FP32 or BF16 numbers whose squares are added.
struct SquaredArray {
  const void* data = nullptr;
  Format format = Format::kFp32;
  std::int64_t elements = 0;
};

// The clipping factor of a step from the gradients' sum of squares, all on the device.
struct ClipFactorArgs {
  const double* sum_of_squares = nullptr;
  double clip_norm = 0;     // 0: no clipping
  float* factor = nullptr;  // clip_norm / norm rounded to FP32 where the norm is larger, else 1; NaN where
                            // the norm is not finite: the step is to be skipped
};

}  // namespace coat::kernels
