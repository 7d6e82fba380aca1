// What of a run goes into a checkpoint, and what must be equal for it to go on from one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "spec/job_spec.h"
#include "worker/core/base/parameter.h"
#include "worker/core/checkpoint/checkpoint_store.h"
#include "worker/core/data/dataset.h"
#include "worker/core/optim/adamw.h"
#include "worker/core/quant/recipe.h"

namespace coat::train {

using Identity = std::vector<std::pair<std::string, std::string>>;

// Fields of the spec that fix the shape of the state and the order of the data. The learning rate, the number
// of steps and the split into micro-batches may change from attempt to attempt.
Identity spec_identity(const spec::JobSpec& spec, const Recipe& recipe);
// The data's own: compared apart, since another file is an error of the data and not of the checkpoint.
Identity data_identity(const data::DataIdentity& data);

// Host views of tensors, made for one save or load. Tensors of another device are staged: after a load,
// write_back() copies them to their device.
class HostViews {
 public:
  explicit HostViews(const std::vector<std::pair<std::string, at::Tensor>>& tensors, bool for_load);
  const std::vector<checkpoint::HostTensor>& tensors() const { return views_; }
  void write_back();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;  // host copy, device tensor
  std::vector<checkpoint::HostTensor> views_;
};

std::vector<std::pair<std::string, at::Tensor>> parameter_tensors(ParameterRegistry& parameters);

}  // namespace coat::train
