#include "worker/core/train/step_runner.h"

#include <cmath>
#include <cstring>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "worker/core/base/error.h"
#include "worker/core/train/quantization_figures.h"

namespace coat::train {
namespace {

// To another device the copy runs beside the host, from pinned memory.
template <typename T>
at::Tensor tensor_of(const T* values, std::int64_t count, at::ScalarType type, at::Device device) {
  at::Tensor host = at::empty({count}, at::TensorOptions().dtype(type).pinned_memory(!device.is_cpu()));
  std::memcpy(host.mutable_data_ptr(), values, static_cast<std::size_t>(count) * sizeof(T));
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

}  // namespace

MicroBatch micro_batch_of(const data::SequenceBatch& batch, std::int64_t first, std::int64_t rows,
                          at::Device device) {
  const std::int64_t begin = first * batch.length;
  const std::int64_t count = rows * batch.length;
  MicroBatch result{.sequences = rows, .length = batch.length};
  result.tokens = tensor_of(batch.tokens.data() + begin, count, at::kInt, device);
  result.targets = tensor_of(batch.targets.data() + begin, count, at::kInt, device);
  if (!batch.mask.empty()) result.mask = tensor_of(batch.mask.data() + begin, count, at::kFloat, device);
  return result;
}

bool StepRunner::measures(std::int64_t step) const {
  const std::int64_t interval = options_.quantization_interval;
  return interval > 0 && (step == 1 || step % interval == 0);
}

std::optional<StepResult> StepRunner::run(std::int64_t step, std::int64_t data_position,
                                          const RunControl& control) {
  // The whole step's tokens are known before the first micro-batch: their number scales every gradient.
  const data::SequenceBatch batch = dataset_.read(data_position, sequences_per_step());
  StepResult result{.learning_rate = schedule_.learning_rate(step), .tokens = batch.counting_tokens()};
  if (result.tokens == 0) {
    throw DataError("data.path", "no token of step " + std::to_string(step) + " counts for the loss",
                    "use data whose mask leaves targets in every step");
  }
  const auto scale = static_cast<float>(1.0 / static_cast<double>(result.tokens));
  QuantizationProbe probe;
  const bool measure = measures(step);

  model_.parameters().zero_gradients();
  at::Tensor loss_sum = at::zeros({1}, at::TensorOptions(options_.device).dtype(at::kDouble));
  for (std::int64_t i = 0; i < options_.accumulation_steps; ++i) {
    if (control.stop_requested()) return std::nullopt;
    const MicroBatch part =
        micro_batch_of(batch, i * options_.micro_batch, options_.micro_batch, options_.device);
    loss_sum += model_.add_gradients(part, scale, measure ? &probe : nullptr);
  }
  if (control.stop_requested()) return std::nullopt;
  result.loss = loss_sum.item<double>() / static_cast<double>(result.tokens);  // waits for the device
  if (!std::isfinite(result.loss)) {
    throw NonFiniteLossError("the loss of step " + std::to_string(step) + " is " +
                             std::to_string(result.loss) +
                             ": lower optimizer.learning_rate or lengthen optimizer.warmup_steps");
  }
  optimizer_.step(static_cast<std::uint64_t>(step), result.learning_rate, measure);
  const AdamWStepResult update = optimizer_.result();  // waits for the device
  result.grad_norm = update.grad_norm;
  result.skipped = update.skipped;
  if (measure) result.quantization = quantization_figures(recipe_, probe, update);
  return result;
}

}  // namespace coat::train
