// A sample from a checkpoint on disk, with nothing but its folder.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "worker/core/checkpoint/file_system.h"
#include "worker/core/train/sampler.h"

namespace coat::train {

struct SampleRequest {
  std::string folder;  // one checkpoint ("step-..."), or a job's folder: then its newest whole one
  std::string prompt;  // empty: the spec's
  std::optional<std::int64_t> tokens;  // where absent, the spec's
  std::optional<double> temperature;
  std::optional<std::uint64_t> seed;
};

// Throws CheckpointError where there is none or it is damaged, SpecError where no prompt is given or it
// cannot be read.
std::string sample_from(checkpoint::FileSystem& files, const SampleRequest& request, at::Device device);

}  // namespace coat::train
