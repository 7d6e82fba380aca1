// Whole runs of the trainer's core on the GPU, beside the same runs on the CPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>

#include <gmock/gmock.h>

#include "tests/gpu/device/device_memory.h"
#include "tests/unit/worker/core/train/fixture.h"
#include "worker/core/base/cuda_device.h"
#include "worker/core/base/error.h"
#include "worker/core/quant/weight_format.h"
#include "worker/core/train/memory_meter.h"
#include "worker/core/train/sample_from.h"
#include "worker/core/train/training_run.h"
#include "worker/protocol/exit_codes.h"
#include "worker/trainer/failures.h"

namespace coat::gpu_test {
namespace {

using coat::testing::read_file;
using ::testing::HasSubstr;
using train::Recorder;
using train::RunEnd;
using train::RunOptions;

const at::Device kCpu(at::kCPU);
const at::Device kGpu(at::kCUDA, 0);

// The quickstart's model and batch. A tenth of its learning rate: at all of it, on this easy text, two runs
// on the CPU that differ by one rounding are 0.4 apart at step 11.
spec::JobSpec quickstart(const std::string& path, const std::string& recipe) {
  spec::JobSpec spec = train::small_spec(path, recipe);
  spec.model = {
      .vocab_size = 256, .hidden = 256, .intermediate = 688, .layers = 4, .heads = 4, .kv_heads = 2};
  spec.training = {.steps = 20, .sequence_length = 256, .micro_batch = 8, .accumulation_steps = 1, .seed = 1};
  spec.optimizer.learning_rate = 3e-4;
  spec.optimizer.warmup_steps = 10;
  return spec;
}

class TrainingTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "SKIPPED: no CUDA device";
    spec_ = quickstart(folder_.write("text", train::small_text(600000)), GetParam());
  }

  RunOptions options(const std::string& name, at::Device device, bool resume = false) {
    return {.spec = spec_, .device = device, .checkpoint_folder = folder_ / name, .resume = resume};
  }
  Recorder run(const RunOptions& options, const train::ModelFactory& factory) {
    Recorder recorder;
    train::RunControl control;
    train::TrainingRun training(options, factory, checkpoint::real_file_system(), recorder, control);
    EXPECT_EQ(training.run(), RunEnd::kDone);
    summary_ = training.summary();
    return recorder;
  }
  Recorder run(const RunOptions& options) { return run(options, train::llama_factory(options.device)); }
  void stop_at(std::int64_t steps, const std::string& name, at::Device device) {
    spec::JobSpec whole = spec_;
    spec_.training.steps = steps;
    run(options(name, device));
    spec_ = whole;
  }

  coat::testing::TemporaryFolder folder_;
  spec::JobSpec spec_;
  std::optional<train::SummaryReport> summary_;
};

// An element of a parameter, however it is stored.
float value_of(const Parameter& parameter, std::int64_t i) {
  if (!parameter.residual.defined()) return parameter.value.const_data_ptr<float>()[i];
  return join_weight(parameter.value.const_data_ptr<at::BFloat16>()[i].x,
                     parameter.residual.const_data_ptr<std::int8_t>()[i]);
}
void set_value(Parameter& parameter, std::int64_t i, float value) {
  if (!parameter.residual.defined()) {
    parameter.value.mutable_data_ptr<float>()[i] = value;
    return;
  }
  const SplitWeight split = split_weight(value);
  parameter.value.mutable_data_ptr<at::BFloat16>()[i].x = split.bf16;
  parameter.residual.mutable_data_ptr<std::int8_t>()[i] = split.residual;
}

// The CPU's model with every weight moved by a unit roundoff of BF16, up or down: as much as one more
// rounding of each product would change it.
train::ModelFactory rounded_once_more() {
  return [](const spec::JobSpec& spec, const kernels::Kernels& kernels) {
    auto model = train::llama_factory(kCpu)(spec, kernels);
    std::uint32_t state = 1;
    for (Parameter* parameter : model->parameters().all()) {
      for (std::int64_t i = 0; i < parameter->value.numel(); ++i) {
        state = state * 1664525u + 1013904223u;
        const float factor = 1.0f + (state >> 31 != 0 ? 0x1p-9f : -0x1p-9f);
        set_value(*parameter, i, value_of(*parameter, i) * factor);
      }
    }
    return model;
  };
}

// How far the losses of two runs may be apart that differ in their roundings alone. Such runs part like a run
// from one whose weights were rounded once more, whose distance is measured here, so that the growth over the
// steps is the model's own. Of each decoder layer the GPU rounds otherwise: its seven products' results
// (their FP32 sums have another order), attention's probabilities, output and gradients (BF16 instead of
// FP32), and with `coat` the codes that follow. About 4 independent roundings for each weight matrix's one
// add up as sqrt(4) = 2 times; the largest distance so far instead of each step's, and twice the whole, since
// one run's distance is one draw of a random size.
class Bound {
 public:
  void add(double exact, double rounded) { largest_ = std::max(largest_, std::abs(exact - rounded)); }
  double value(double loss) const { return 4 * largest_ + loss * 0x1p-12; }

 private:
  double largest_ = 0;
};

TEST_P(TrainingTest, TheFirstTwentyLossesFollowTheCpus) {
  const std::vector<double> cpu = run(options("cpu", kCpu)).losses();
  const std::vector<double> rounded = run(options("rounded", kCpu), rounded_once_more()).losses();
  const std::vector<double> gpu = run(options("gpu", kGpu)).losses();
  ASSERT_EQ(gpu.size(), 20u);
  Bound bound;
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    bound.add(cpu[i], rounded[i]);
    std::printf("%-10s step %2zu  cpu %.6f  gpu %.6f  difference %+.6f  bound %.6f\n", GetParam(), i + 1,
                cpu[i], gpu[i], gpu[i] - cpu[i], bound.value(cpu[i]));
    EXPECT_NEAR(gpu[i], cpu[i], bound.value(cpu[i])) << "step " << i + 1;
  }
  EXPECT_LT(gpu.back(), gpu.front() - 1) << "it learns";
}

TEST_P(TrainingTest, ASeedGivesTheSameWeights) {
  const auto cpu = train::llama_factory(kCpu)(spec_, train::kernels_for(kCpu));
  const auto gpu = train::llama_factory(kGpu)(spec_, train::kernels_for(kGpu));
  for (std::size_t i = 0; i < cpu->parameters().all().size(); ++i) {
    const Parameter& expected = *cpu->parameters().all()[i];
    const Parameter& found = *gpu->parameters().all()[i];
    EXPECT_TRUE(expected.value.equal(found.value.cpu())) << expected.name;
    EXPECT_EQ(expected.residual.defined(), found.residual.defined()) << expected.name;
    if (expected.residual.defined()) {
      EXPECT_TRUE(expected.residual.equal(found.residual.cpu())) << expected.name;
    }
  }
}

// Sequences of several blocks of keys, whose sums an unordered addition would change.
TEST_P(TrainingTest, EqualRunsGiveEqualBits) {
  spec_.training = {
      .steps = 6, .sequence_length = 1024, .micro_batch = 4, .accumulation_steps = 2, .seed = 3};
  spec_.optimizer.warmup_steps = 2;
  const Recorder first = run(options("first", kGpu)), second = run(options("second", kGpu));
  EXPECT_EQ(first.losses(), second.losses());
  for (const char* file : {"/step-00000006/parameters.bin", "/step-00000006/optimizer.bin"}) {
    EXPECT_TRUE(read_file(folder_ / "first" + file) == read_file(folder_ / "second" + file)) << file;
  }
}

TEST_P(TrainingTest, SixAndSixStepsAreTwelveBitForBit) {
  spec_.training.steps = 12;
  spec_.optimizer.schedule = "constant";  // the others look at the number of steps
  const std::vector<double> whole = run(options("whole", kGpu)).losses();
  stop_at(6, "part", kGpu);
  const Recorder second = run(options("part", kGpu, true));
  EXPECT_EQ(second.starts[0].resume_step, 6);
  EXPECT_EQ(second.losses(), std::vector<double>(whole.begin() + 6, whole.end()));
  for (const char* file : {"/step-00000012/parameters.bin", "/step-00000012/optimizer.bin"}) {
    EXPECT_TRUE(read_file(folder_ / "whole" + file) == read_file(folder_ / "part" + file)) << file;
  }
}

// Each device goes on from the other's checkpoint as that other would have.
TEST_P(TrainingTest, ACheckpointGoesOnOnTheOtherDevice) {
  spec_.training.steps = 12;
  spec_.optimizer.schedule = "constant";
  const std::vector<double> cpu = run(options("cpu", kCpu)).losses();
  const std::vector<double> rounded = run(options("rounded", kCpu), rounded_once_more()).losses();
  stop_at(6, "to-gpu", kCpu);
  stop_at(6, "to-cpu", kGpu);
  const Recorder on_gpu = run(options("to-gpu", kGpu, true)), on_cpu = run(options("to-cpu", kCpu, true));
  EXPECT_EQ(on_gpu.starts[0].resume_step, 6);
  EXPECT_EQ(on_cpu.starts[0].resume_step, 6);
  Bound bound;
  for (std::size_t i = 0; i < 12; ++i) {
    bound.add(cpu[i], rounded[i]);
    if (i < 6) continue;
    EXPECT_NEAR(on_gpu.losses()[i - 6], cpu[i], bound.value(cpu[i])) << "CPU to GPU, step " << i + 1;
    EXPECT_NEAR(on_cpu.losses()[i - 6], cpu[i], bound.value(cpu[i])) << "GPU to CPU, step " << i + 1;
  }
}

TEST_P(TrainingTest, SamplesFromACheckpointOfEitherDevice) {
  spec_.sample = {.prompt = "the ", .tokens = 24, .temperature = 0};
  run(options("job", kGpu));
  const std::string told = summary_->sample;
  EXPECT_GE(told.size(), 28u);
  const train::SampleRequest request{
      .folder = folder_ / "job", .prompt = "the ", .tokens = 24, .temperature = 0};
  EXPECT_EQ(train::sample_from(checkpoint::real_file_system(), request, kGpu), told);
  EXPECT_THAT(train::sample_from(checkpoint::real_file_system(), request, kCpu), HasSubstr("the "));
}

TEST_P(TrainingTest, TheLedgerIsNeverPassed) {
  spec_.training.steps = 2;
  spec_.optimizer.warmup_steps = 1;
  cuda_device::use(kGpu);
  cuda_device::reset_peak(kGpu);
  const std::int64_t before = cuda_device::memory(kGpu).allocated;
  const Recorder recorder = run(options("job", kGpu));
  const std::int64_t peak = recorder.steps.back().memory_peak_bytes,
                     total = summary_->estimate.memory.total();
  std::printf("%-10s ledger %lld, peak %lld, of which held before %lld bytes\n", GetParam(),
              static_cast<long long>(total), static_cast<long long>(peak), static_cast<long long>(before));
  EXPECT_LE(peak - before, total + total / 50);
  EXPECT_GT(peak, summary_->estimate.memory.weights + summary_->estimate.memory.gradients);
}

int exit_code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (...) {
    const protocol::Failure failure = trainer::failure_of(std::current_exception());
    std::printf("%d: %s\n", failure.exit_code, failure.message.c_str());
    return failure.exit_code;
  }
  return 0;
}

TEST_P(TrainingTest, TooLittleDeviceMemoryEndsWith71) {
  constexpr int kOutOfMemory = static_cast<int>(protocol::ExitCode::kOutOfDeviceMemory);
  RunOptions refused = options("refused", kGpu);
  refused.memory_bytes = std::int64_t{1} << 20;
  EXPECT_EQ(exit_code_of([&] { run(refused); }), kOutOfMemory);
  // The ledger is not asked, the allocator is: nothing beyond what the kernels hold already.
  train::limit_memory(kGpu, std::int64_t{16} << 20);
  spec_.training.micro_batch = 512;  // more than the allocator keeps from other tests
  EXPECT_EQ(exit_code_of([&] { run(options("failed", kGpu)); }), kOutOfMemory);
  train::limit_memory(kGpu, train::device_memory_bytes(kGpu));
  spec_.training.micro_batch = 8;
  spec_.training.steps = 2;
  spec_.optimizer.warmup_steps = 1;
  EXPECT_EQ(exit_code_of([&] { run(options("good", kGpu)); }), 0) << "the device is as good as before";
}

TEST_P(TrainingTest, ADeviceThatIsNotThereEndsWith64) {
  const at::Device missing(at::kCUDA, 99);
  EXPECT_EQ(exit_code_of([&] { run(options("missing", missing)); }),
            static_cast<int>(protocol::ExitCode::kBadSpec));
}

TEST_P(TrainingTest, AHeadSizeThatAttentionCannotTakeEndsWith64) {
  spec_.model.hidden = 48;
  spec_.model.intermediate = 96;
  EXPECT_EQ(exit_code_of([&] { run(options("heads", kGpu)); }),
            static_cast<int>(protocol::ExitCode::kBadSpec));
}

INSTANTIATE_TEST_SUITE_P(Recipes, TrainingTest, ::testing::Values("bf16", "coat", "coat-paper"),
                         [](const auto& suite) {
                           std::string name = suite.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace coat::gpu_test
