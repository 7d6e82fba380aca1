// The same model as an ordinary eager program trains it: FP32, autograd, fused attention, libtorch's AdamW
// and clipping.
#pragma once

#include <memory>

#include "spec/job_spec.h"
#include "worker/core/model/language_model.h"

namespace coat::oracle {

class EagerTrainer {
 public:
  EagerTrainer(const spec::ModelSpec& model, const ParameterRegistry& initial,
               const spec::OptimizerSpec& optimizer);
  ~EagerTrainer();
  // One step on the mean loss; returns it.
  double step(const MicroBatch& batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coat::oracle
