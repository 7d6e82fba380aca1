// The memory ledger of a whole job: a closed form of (model, recipe, batch), before anything is allocated.
#pragma once

#include <cstdint>

#include <c10/core/DeviceType.h>

#include "spec/job_spec.h"
#include "worker/core/base/memory_ledger.h"
#include "worker/core/quant/recipe.h"
#include "worker/core/train/report.h"

namespace coat::train {

// Weights and gradients FP32; moments in the recipe's formats with their scales, a sum over parameters since
// groups never cross one's border; saved activations and the largest transient of one micro-batch.
MemoryLedger memory_ledger(const spec::ModelSpec& model, const spec::TrainingSpec& training,
                           const Recipe& recipe, c10::DeviceType device = c10::DeviceType::CPU);

TrainingEstimate estimate(const spec::JobSpec& spec, c10::DeviceType device = c10::DeviceType::CPU);

// Bytes that a checkpoint of the job takes on disk, without its manifest.
std::int64_t checkpoint_bytes(const spec::JobSpec& spec);

// Throws OutOfDeviceMemoryError with both numbers, the largest category and what would fit, where the ledger
// is above `device_bytes`.
void require_fit(const spec::JobSpec& spec, std::int64_t device_bytes,
                 c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace coat::train
