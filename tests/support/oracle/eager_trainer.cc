#include "tests/support/oracle/eager_trainer.h"

#include <vector>

#include <torch/torch.h>

#include "tests/support/oracle/autograd_llama.h"

namespace coat::oracle {

struct EagerTrainer::State {
  spec::ModelSpec model;
  double clip_norm;
  Weights weights;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

EagerTrainer::EagerTrainer(const spec::ModelSpec& model, const ParameterRegistry& initial,
                           const spec::OptimizerSpec& optimizer)
    : state_(new State{model, optimizer.clip_norm, weights_of(initial, at::kFloat), {}, nullptr}) {
  for (const auto& [name, weight] : state_->weights) state_->parameters.push_back(weight);
  state_->optimizer = std::make_unique<torch::optim::AdamW>(
      state_->parameters, torch::optim::AdamWOptions(optimizer.learning_rate)
                              .betas({optimizer.beta1, optimizer.beta2})
                              .eps(optimizer.eps)
                              .weight_decay(optimizer.weight_decay));
}

EagerTrainer::~EagerTrainer() = default;

double EagerTrainer::step(const MicroBatch& batch) {
  state_->optimizer->zero_grad();
  const Arithmetic arithmetic{.dtype = at::kFloat, .attention = AttentionKind::kFused};
  const at::Tensor loss = loss_sum(arithmetic, state_->model, state_->weights, batch) /
                          static_cast<double>(batch.targets.numel());
  loss.backward();
  torch::nn::utils::clip_grad_norm_(state_->parameters, state_->clip_norm);
  state_->optimizer->step();
  return loss.item<double>();
}

}  // namespace coat::oracle
