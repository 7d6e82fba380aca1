#include "worker/core/train/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/core/train/fixture.h"
#include "worker/core/base/error.h"
#include "worker/core/kernels/cpu/cpu_kernels.h"
#include "worker/core/model/language_model.h"
#include "worker/core/model/model_ledger.h"

namespace coat::train {
namespace {

using ::testing::HasSubstr;

TEST(Estimate, AgreesWithWhatIsAllocated) {
  for (const std::string name : {"coat", "coat-paper", "bf16"}) {
    const spec::JobSpec spec = small_spec("unused", name);
    const auto model = make_llama(spec.model, recipe(name), kernels::cpu_kernels(), at::kCPU, 1);
    const AdamW optimizer(model->parameters(), recipe(name), {}, kernels::cpu_kernels());
    const MemoryLedger ledger = memory_ledger(spec.model, spec.training, recipe(name));
    std::int64_t weights = 0;
    std::int64_t gradients = 0;
    for (const Parameter* parameter : model->parameters().all()) {
      weights += static_cast<std::int64_t>(parameter->value.nbytes());
      if (parameter->residual.defined()) weights += static_cast<std::int64_t>(parameter->residual.nbytes());
      gradients += static_cast<std::int64_t>(parameter->gradient.nbytes());
    }
    std::int64_t moments = 0;
    for (const auto& entry : optimizer.state()) moments += static_cast<std::int64_t>(entry.second.nbytes());
    EXPECT_EQ(ledger.weights, weights) << name;
    EXPECT_EQ(ledger.gradients, gradients) << name;
    EXPECT_EQ(ledger.moment1 + ledger.moment2, moments) << name;
    EXPECT_EQ(ledger.moment1, optimizer.moment1_bytes()) << name;
    EXPECT_EQ(checkpoint_bytes(spec), weights + moments) << name;
  }
}

TEST(Estimate, HoldsBothRecipes) {
  const spec::JobSpec spec = small_spec("unused", "coat");
  const TrainingEstimate result = estimate(spec);
  EXPECT_EQ(result.recipe, "coat");
  EXPECT_EQ(result.parameters, parameter_count(spec.model));
  EXPECT_EQ(result.memory, memory_ledger(spec.model, spec.training, recipe("coat")));
  EXPECT_EQ(result.memory_bf16, memory_ledger(spec.model, spec.training, recipe("bf16")));
  EXPECT_LT(result.memory.total(), result.memory_bf16.total());
  EXPECT_LT(result.saved_bytes_per_token_per_layer,
            estimate(small_spec("unused", "bf16")).saved_bytes_per_token_per_layer);
}

TEST(RequireFit, IsExactAtTheBorder) {
  const spec::JobSpec spec = small_spec("unused", "coat");
  const std::int64_t needed = estimate(spec).memory.total();
  require_fit(spec, needed);
  EXPECT_THAT(reason<OutOfDeviceMemoryError>([&] { require_fit(spec, needed - 1); }),
              HasSubstr("needs " + std::to_string(needed) + " bytes"));
}

// What the message proposes is true: it fits, and one more does not.
TEST(RequireFit, ProposesTheLargestMicroBatch) {
  spec::JobSpec spec = small_spec("unused", "coat");
  spec.training.micro_batch = 64;
  spec::TrainingSpec smaller = spec.training;
  smaller.micro_batch = 11;
  const std::int64_t bytes = memory_ledger(spec.model, smaller, recipe("coat")).total();
  EXPECT_THAT(reason<OutOfDeviceMemoryError>([&] { require_fit(spec, bytes); }),
              HasSubstr("training.micro_batch = 11 fits"));
  EXPECT_THAT(reason<OutOfDeviceMemoryError>([&] { require_fit(spec, bytes - 1); }),
              HasSubstr("training.micro_batch = 10 fits"));
}

TEST(RequireFit, ProposesARecipeOrNothing) {
  spec::JobSpec spec = small_spec("unused", "bf16");
  spec.training.micro_batch = 1;
  const std::int64_t coat_bytes = memory_ledger(spec.model, spec.training, recipe("coat")).total();
  EXPECT_THAT(reason<OutOfDeviceMemoryError>([&] { require_fit(spec, coat_bytes); }),
              HasSubstr("recipe coat fits"));
  EXPECT_THAT(reason<OutOfDeviceMemoryError>([&] { require_fit(spec, 1000); }),
              HasSubstr("no micro_batch fits"));
}

}  // namespace
}  // namespace coat::train
