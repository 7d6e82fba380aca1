// Tokens a second of whole optimizer steps of a Llama of 1.3 billion parameters on a GPU, and where the time
// goes: events around every operation of the kernels; what is left is attention, copies of ATen's and gaps.
//
//   gpu_step_bench [--layers N] [--sequences N] [--steps N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/randint.h>
#include <torch/version.h>

#include "tests/bench/device_timer.h"
#include "tests/bench/timed_kernels.h"
#include "worker/core/base/cuda_device.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"
#include "worker/core/model/language_model.h"
#include "worker/core/model/model_ledger.h"
#include "worker/core/optim/adamw.h"
#include "worker/core/train/estimate.h"

namespace coat::bench {
namespace {

const at::Device kDevice(at::kCUDA, 0);

struct Options {
  std::int64_t layers = 24;
  std::int64_t sequences = 8;
  std::int64_t length = 2048;
  int steps = 5;
};

spec::ModelSpec model_of(const Options& options) {
  return {.vocab_size = 32000,
          .hidden = 2048,
          .intermediate = 5504,
          .layers = options.layers,
          .heads = 16,
          .kv_heads = 16};
}

class Training {
 public:
  Training(const Options& options, const std::string& recipe_name, const kernels::Kernels& kernels)
      : model_(make_llama(model_of(options), recipe(recipe_name), kernels, kDevice, 1)),
        optimizer_(model_->parameters(), recipe(recipe_name), AdamWOptions{}, kernels) {
    const std::int64_t tokens = options.sequences * options.length;
    const at::TensorOptions ids = at::TensorOptions(kDevice).dtype(at::kInt);
    batch_ = {at::randint(32000, {tokens}, ids),
              at::randint(32000, {tokens}, ids),
              {},
              options.sequences,
              options.length};
  }
  double step() {
    const auto tokens = static_cast<double>(batch_.targets.numel());
    model_->parameters().zero_gradients();
    const at::Tensor loss = model_->add_gradients(batch_, static_cast<float>(1 / tokens), nullptr);
    optimizer_.step(++number_, 1e-4, false);
    return loss.item<double>() / tokens;
  }

 private:
  std::unique_ptr<LanguageModel> model_;
  AdamW optimizer_;
  MicroBatch batch_;
  std::uint64_t number_ = 0;
};

double now_ms() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

// Milliseconds of a step, median; every step ends with its loss read back.
double time_steps(Training& training, int steps, double& loss) {
  std::vector<double> times;
  for (int i = 0; i < 2 + steps; ++i) {
    const double start = now_ms();
    loss = training.step();
    if (i >= 2) times.push_back(now_ms() - start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print_profile(Profile& profile, double step_ms) {
  const auto entries = profile.take();
  std::vector<std::pair<std::string, Profile::Entry>> sorted(entries.begin(), entries.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  double sum = 0;
  for (const auto& [name, entry] : sorted) {
    sum += entry.ms;
    std::printf("  %-58s %5lld calls %9.2f ms %6.1f %%\n", name.c_str(), static_cast<long long>(entry.calls),
                entry.ms, 100 * entry.ms / step_ms);
  }
  std::printf("  %-58s             %9.2f ms %6.1f %%\n", "attention, copies and gaps: the rest",
              step_ms - sum, 100 * (step_ms - sum) / step_ms);
}

void run_recipe(const Options& options, const std::string& recipe_name) {
  Profile profile(cuda_device::current_stream(kDevice));
  const TimedKernels timed(kernels::cuda_kernels(), profile);
  const auto tokens = static_cast<double>(options.sequences * options.length);
  cuda_device::reset_peak(kDevice);
  double loss = 0;
  Training training(options, recipe_name, timed);
  profile.enable(false);
  const double ms = time_steps(training, options.steps, loss);
  spec::TrainingSpec shape;
  shape.micro_batch = options.sequences;
  shape.sequence_length = options.length;
  const MemoryLedger ledger = train::memory_ledger(model_of(options), shape, recipe(recipe_name), at::kCUDA);
  const double peak = static_cast<double>(cuda_device::memory(kDevice).peak);
  const double flops = 6.0 * static_cast<double>(parameter_count(model_of(options))) * tokens;
  std::printf("\nrecipe %-5s %10.0f tokens/s  %8.2f ms a step  %6.1f TFLOP/s (6 N T)  loss %.4f\n",
              recipe_name.c_str(), 1e3 * tokens / ms, ms, flops / ms / 1e9, loss);
  std::printf("  memory: peak %.3f GiB, ledger %.3f GiB (%+.2f %%)\n", peak / (1 << 30),
              static_cast<double>(ledger.total()) / (1 << 30),
              100 * (static_cast<double>(ledger.total()) / peak - 1));
  profile.enable(true);
  training.step();
  profile.take();
  const double start = now_ms();
  training.step();
  print_profile(profile, now_ms() - start);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const int value = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--layers") == 0) options.layers = value;
    if (std::strcmp(argv[i], "--sequences") == 0) options.sequences = value;
    if (std::strcmp(argv[i], "--steps") == 0) options.steps = value;
  }
  if (argc % 2 == 0 || options.layers < 1 || options.sequences < 1 || options.steps < 1) {
    std::fprintf(stderr, "usage: %s [--layers N] [--sequences N] [--steps N]\n", argv[0]);
    return 2;
  }
  cuda_device::use(kDevice);
  std::printf("date      %s\ndevice    %s\nversions  libtorch %s\n", date_line().c_str(),
              device_line().c_str(), TORCH_VERSION);
  std::printf(
      "model     %lld parameters (hidden 2048, intermediate 5504, %lld layers), %lld x %lld tokens a step\n",
      static_cast<long long>(parameter_count(model_of(options))), static_cast<long long>(options.layers),
      static_cast<long long>(options.sequences), static_cast<long long>(options.length));
  for (const char* name : {"bf16", "coat-paper", "coat"}) run_recipe(options, name);
  return 0;
}

}  // namespace
}  // namespace coat::bench

int main(int argc, char** argv) { return coat::bench::run(argc, argv); }
