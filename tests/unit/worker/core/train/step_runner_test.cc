#include "worker/core/train/step_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include "tests/unit/worker/core/train/bigram_model.h"
#include "tests/unit/worker/core/train/fixture.h"
#include "worker/core/base/error.h"
#include "worker/core/kernels/cpu/cpu_kernels.h"
#include "worker/core/train/training_run.h"

namespace coat::train {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kVocab = 128;

// A model with its optimizer and runner, on the fixture's text.
template <typename Model>
struct Bench {
  Bench(std::unique_ptr<Model> made, const data::Dataset& dataset, const StepOptions& options,
        const std::string& recipe_name)
      : model(std::move(made)),
        optimizer(model->parameters(), recipe(recipe_name), {}, kernels::cpu_kernels()),
        runner(*model, optimizer, dataset, recipe(recipe_name),
               {.kind = "constant", .peak = 0.01, .warmup_steps = 0, .total_steps = 100}, options) {}
  std::string state() { return state_bytes(model->parameters(), optimizer); }

  std::unique_ptr<Model> model;
  AdamW optimizer;
  StepRunner runner;
  RunControl control;
};

class StepRunnerTest : public ::testing::Test {
 protected:
  StepRunnerTest() {
    dataset_ = data::open_token_dataset({.path = folder_.write("text", small_text(20000)),
                                         .vocab_size = kVocab,
                                         .sequence_length = 32,
                                         .seed = 3});
  }
  std::unique_ptr<Bench<BigramModel>> bigram(const StepOptions& options) {
    return std::make_unique<Bench<BigramModel>>(std::make_unique<BigramModel>(kVocab), *dataset_, options,
                                                "coat");
  }
  coat::testing::TemporaryFolder folder_;
  std::unique_ptr<data::Dataset> dataset_;
};

TEST_F(StepRunnerTest, TheLossIsTheMeanOverTheStepsTokens) {
  auto bench = bigram({.micro_batch = 4, .accumulation_steps = 2});
  const auto result = bench->runner.run(1, 0, bench->control);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tokens, 8 * 32);
  EXPECT_NEAR(result->loss, std::log(kVocab), 1e-12);  // all logits are 0
  EXPECT_EQ(result->learning_rate, 0.01);
  EXPECT_FALSE(result->skipped);
  EXPECT_GT(result->grad_norm, 0);
}

// Every gradient is a sum of at most T terms of magnitude at most 1 / T. In whichever order FP32 adds them
// up, each of the T - 1 roundings is at most 2^-24 of a partial sum, and no partial sum exceeds 1.
TEST_F(StepRunnerTest, EightMicroBatchesEqualOneOfEightWithinTheRoundingOfSums) {
  auto whole = bigram({.micro_batch = 8, .accumulation_steps = 1});
  auto split = bigram({.micro_batch = 1, .accumulation_steps = 8});
  const auto a = whole->runner.run(1, 40, whole->control);
  const auto b = split->runner.run(1, 40, split->control);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(split->model->calls, 8);
  EXPECT_EQ(a->tokens, b->tokens);
  EXPECT_NEAR(a->loss, b->loss, 1e-13 * a->loss);
  const double bound = 8 * 32 * std::ldexp(1.0, -24);
  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor difference =
        whole->model->parameters().all()[i]->gradient - split->model->parameters().all()[i]->gradient;
    EXPECT_LE(difference.abs().max().item<double>(), bound);
  }
}

// In a Llama with recipe bf16 a row's values do not depend on the other rows but for the order of sums inside
// products; a sum that falls on the other side of a rounding border moves one BF16 value by 2^-8 of itself.
// At most about ten roundings lie between a layer's weight and the loss, and they add up as independent
// errors over the layers.
TEST_F(StepRunnerTest, ALlamaIsTheSameHoweverTheStepIsSplit) {
  const spec::JobSpec spec = small_spec(folder_ / "text", "bf16");
  const auto gradients = [&](std::int64_t micro_batch, std::int64_t accumulation) {
    Bench<LanguageModel> bench(make_llama(spec.model, recipe("bf16"), kernels::cpu_kernels(), at::kCPU, 1),
                               *dataset_, {.micro_batch = micro_batch, .accumulation_steps = accumulation},
                               "bf16");
    const auto result = bench.runner.run(1, 0, bench.control);
    std::vector<at::Tensor> copies;
    for (const Parameter* parameter : bench.model->parameters().all())
      copies.push_back(parameter->gradient.clone());
    return std::make_pair(result->loss, copies);
  };
  const auto [whole_loss, whole] = gradients(8, 1);
  const auto [split_loss, split] = gradients(1, 8);
  const double bound = std::sqrt(10.0 * 2) * std::ldexp(1.0, -8);
  EXPECT_NEAR(whole_loss, split_loss, std::ldexp(1.0, -8) * whole_loss);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const double norm = whole[i].norm().item<double>();
    EXPECT_GT(norm, 0);
    EXPECT_LE((whole[i] - split[i]).norm().item<double>(), bound * norm) << i;
  }
}

TEST_F(StepRunnerTest, AStopAtAnyMicroBatchChangesNothing) {
  for (int at = 0; at < 4; ++at) {
    auto bench = bigram({.micro_batch = 2, .accumulation_steps = 4});
    ASSERT_TRUE(bench->runner.run(1, 0, bench->control));
    const std::string before = bench->state();
    bench->model->calls = 0;
    bench->model->after_backward = [&](int call) {
      if (call == at) bench->control.request_stop();
    };
    EXPECT_EQ(bench->runner.run(2, 8, bench->control), std::nullopt);
    EXPECT_EQ(bench->model->calls, at + 1) << "no further micro-batch after the request";
    EXPECT_EQ(bench->state(), before);
  }
}

TEST_F(StepRunnerTest, ADroppedStepIsComputedAgainAsIfNothingHadBeen) {
  auto plain = bigram({.micro_batch = 2, .accumulation_steps = 4});
  auto stopped = bigram({.micro_batch = 2, .accumulation_steps = 4});
  RunControl stop;
  stopped->model->after_backward = [&](int call) {
    if (call == 1) stop.request_stop();
  };
  EXPECT_EQ(stopped->runner.run(1, 0, stop), std::nullopt);
  stopped->model->after_backward = nullptr;
  const auto a = plain->runner.run(1, 0, plain->control);
  const auto b = stopped->runner.run(1, 0, stopped->control);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->loss, b->loss);
  EXPECT_EQ(plain->state(), stopped->state());
}

TEST_F(StepRunnerTest, ALossThatIsNotFiniteEndsTheRunUnchanged) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    auto bench = bigram({.micro_batch = 2, .accumulation_steps = 2});
    const std::string before = bench->state();
    bench->model->replace_loss = [&](int call, double loss) { return call == 1 ? bad : loss; };
    EXPECT_THAT(reason<NonFiniteLossError>([&] { bench->runner.run(5, 0, bench->control); }),
                HasSubstr("loss of step 5 is"));
    EXPECT_EQ(bench->state(), before);
  }
}

TEST_F(StepRunnerTest, GradientsThatAreNotFiniteSkipTheStep) {
  auto bench = bigram({.micro_batch = 2, .accumulation_steps = 1});
  const std::string before = bench->state();
  bench->model->after_backward = [&](int) {
    bench->model->parameters().all()[1]->gradient.mutable_data_ptr<float>()[3] = HUGE_VALF;
  };
  const auto result = bench->runner.run(1, 0, bench->control);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->skipped);
  EXPECT_FALSE(std::isfinite(result->grad_norm));
  EXPECT_EQ(bench->state(), before);
}

TEST_F(StepRunnerTest, QuantizationIsMeasuredWhenItIsDue) {
  auto bench = bigram({.micro_batch = 1, .accumulation_steps = 2, .quantization_interval = 3});
  for (std::int64_t step = 1; step <= 6; ++step) {
    const auto result = bench->runner.run(step, (step - 1) * 2, bench->control);
    const bool due = step == 1 || step % 3 == 0;
    EXPECT_EQ(result->quantization.empty(), !due) << step;
    if (!due) continue;
    ASSERT_EQ(result->quantization.size(), 4u);
    EXPECT_EQ(result->quantization[0].tensor_class, "activation");
    EXPECT_EQ(result->quantization[0].format, "e4m3");
    EXPECT_EQ(result->quantization[0].relative_error, 0.25);  // sqrt(2 / 32)
    EXPECT_EQ(result->quantization[0].underflow_fraction, 0.25);
    EXPECT_EQ(result->quantization[1].tensor_class, "moment1");
    EXPECT_EQ(result->quantization[2].tensor_class, "moment2");
    EXPECT_GT(result->quantization[2].mean_expansion, 0);
    const auto& histogram = result->quantization[2].expansion;
    ASSERT_FALSE(histogram.empty());
    EXPECT_TRUE(std::is_sorted(histogram.begin(), histogram.end(), [](const auto& a, const auto& b) {
      return a.below < b.below && a.share <= b.share;
    }));
    EXPECT_EQ(histogram.back().share, 1.0);
    EXPECT_TRUE(result->quantization[0].expansion.empty());
    EXPECT_EQ(result->quantization[3].tensor_class, "update");
    EXPECT_EQ(result->quantization[3].format, "octave8+octave8-unsigned");
  }
  EXPECT_EQ(bench->model->probes, 3 * 2);
}

TEST(MicroBatchOf, CutsRowsAndMask) {
  const data::SequenceBatch batch{.tokens = {1, 2, 3, 4, 5, 6},
                                  .targets = {2, 3, 4, 5, 6, 7},
                                  .mask = {1, 1, 0, 1, 0, 1},
                                  .sequences = 3,
                                  .length = 2};
  const MicroBatch part = micro_batch_of(batch, 1, 2, at::kCPU);
  EXPECT_EQ(part.sequences, 2);
  EXPECT_EQ(part.tokens.numel(), 4);
  EXPECT_EQ(part.tokens.const_data_ptr<std::int32_t>()[0], 3);
  EXPECT_EQ(part.targets.const_data_ptr<std::int32_t>()[3], 7);
  EXPECT_EQ(part.mask.const_data_ptr<float>()[2], 0);
}

}  // namespace
}  // namespace coat::train
