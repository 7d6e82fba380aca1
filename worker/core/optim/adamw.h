// AdamW over a registry: owns the moments in the recipe's formats, and their names in a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/core/base/parameter.h"
#include "worker/core/kernels/api/kernels.h"
#include "worker/core/quant/recipe.h"

namespace coat {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
  std::uint64_t seed = 1;  // of stochastic rounding
};

struct AdamWStepResult {
  double grad_norm = 0;                 // before clipping
  bool skipped = false;                 // the norm was not finite: nothing was written
  kernels::ErrorSums moment1, moment2;  // filled when measured
};

// Not thread-safe. The registry must outlive it.
class AdamW {
 public:
  AdamW(ParameterRegistry& parameters, const Recipe& recipe, const AdamWOptions& options,
        const kernels::Kernels& kernels);

  // One step from the gradients in the registry. `step` counts from 1 and sets the bias correction (and, with
  // stochastic rounding, the random numbers). A skipped step changes no state.
  AdamWStepResult step(std::uint64_t step, double learning_rate, bool measure);

  // Every tensor of the state under "<parameter>.moment1", ".moment1.amax", ".moment1.k16", ...; they alias
  // the state.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  std::int64_t moment1_bytes() const;
  std::int64_t moment2_bytes() const;

 private:
  struct Moment {
    at::Tensor data, amax, k16;
  };
  kernels::Stream stream() const;
  double gradient_norm() const;
  kernels::AdamWTensor tensor_of(std::size_t index);
  static std::int64_t moment_bytes(const std::vector<Moment>& moments);

  ParameterRegistry& parameters_;
  AdamWOptions options_;
  const kernels::Kernels& kernels_;
  MomentFormat format1_, format2_;
  std::vector<Moment> moment1_, moment2_;
};

// learning_rate(step): linear warm-up, then cosine, linear or constant. `step` counts from 1; warm-up reaches
// the peak at step == warmup_steps, the end value at step == total_steps.
struct Schedule {
  std::string kind = "cosine";
  double peak = 0;
  double final_fraction = 0.1;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  double learning_rate(std::int64_t step) const;
};

}  // namespace coat
