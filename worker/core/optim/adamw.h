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
  double grad_norm = 0;         // before clipping
  bool skipped = false;         // the norm was not finite: nothing was written
  kernels::AdamWErrors errors;  // filled when measured
};

// Not thread-safe. The registry must outlive it.
class AdamW {
 public:
  AdamW(ParameterRegistry& parameters, const Recipe& recipe, const AdamWOptions& options,
        const kernels::Kernels& kernels);

  // One step from the gradients in the registry. `step` counts from 1 and sets the bias correction (and, with
  // stochastic rounding, the random numbers). Queued on the device's stream; waits for it only where it
  // measures. A step with a gradient that is not finite is skipped on the device: it changes no state.
  void step(std::uint64_t step, double learning_rate, bool measure);

  // Of the last step; waits for it.
  AdamWStepResult result() const;

  // Every tensor of the state under "<parameter>.moment1", ".moment1.amax", ".moment1.row", ...; they alias
  // the state.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  std::int64_t moment1_bytes() const;
  std::int64_t moment2_bytes() const;

 private:
  struct Moment {
    at::Tensor data, amax, row;
  };
  // Parameters that one call of the kernel can take: all of the same formats.
  struct Batch {
    WeightFormat weights;
    Format gradient;
    std::vector<std::size_t> parameters;
  };
  kernels::Stream stream() const;
  // Leaves the gradients' sum of squares and the clipping factor on the device.
  void find_clip_factor();
  kernels::AdamWArgs args_of_step(std::uint64_t step, double learning_rate) const;
  kernels::AdamWTensor tensor_of(std::size_t index) const;
  static std::int64_t moment_bytes(const std::vector<Moment>& moments);

  ParameterRegistry& parameters_;
  AdamWOptions options_;
  const kernels::Kernels& kernels_;
  MomentFormat format1_, format2_;
  std::vector<Moment> moment1_, moment2_;
  std::vector<Batch> batches_;
  at::Tensor sum_of_squares_;  // one FP64
  at::Tensor clip_factor_;     // one FP32
  kernels::AdamWErrors errors_;
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
