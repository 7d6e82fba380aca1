// Tokens a second of one optimizer step of the quickstart's model: recipes bf16 and coat beside the same
// model in eager FP32 libtorch with its own AdamW, taking turns in one run so that all see the same machine.
//
//   train_step_bench [--rounds N] [--only eager|bf16|coat]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include "tests/support/oracle/eager_trainer.h"
#include "worker/core/base/tracked_allocator.h"
#include "worker/core/kernels/cpu/cpu_kernels.h"
#include "worker/core/model/language_model.h"
#include "worker/core/model/model_ledger.h"
#include "worker/core/optim/adamw.h"

namespace coat {
namespace {

constexpr std::int64_t kSequences = 8;
constexpr std::int64_t kLength = 256;

struct Options {
  int rounds = 10;
  std::string only;
};

struct Contender {
  std::string name;
  std::function<double(const MicroBatch&, int step)> run;
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;  // of all threads together
  double loss = 0;
};

MicroBatch random_batch(const spec::ModelSpec& model) {
  std::mt19937_64 random(1);
  at::Tensor stream = at::empty({kSequences * kLength + 1}, at::kInt);
  std::generate_n(stream.mutable_data_ptr<std::int32_t>(), stream.numel(), [&] {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model.vocab_size));
  });
  const std::int64_t tokens = kSequences * kLength;
  return {stream.narrow(0, 0, tokens).clone(), stream.narrow(0, 1, tokens).clone(), {}, kSequences, kLength};
}

std::unique_ptr<LanguageModel> model_of(const spec::ModelSpec& model, const std::string& recipe_name) {
  return make_llama(model, recipe(recipe_name), kernels::cpu_kernels(), at::kCPU, 1);
}

Contender ours(const spec::ModelSpec& spec, const std::string& recipe_name) {
  std::shared_ptr<LanguageModel> model = model_of(spec, recipe_name);
  auto optimizer = std::make_shared<AdamW>(model->parameters(), recipe(recipe_name), AdamWOptions{},
                                           kernels::cpu_kernels());
  const auto run = [model, optimizer](const MicroBatch& batch, int step) {
    const auto tokens = static_cast<double>(batch.targets.numel());
    model->parameters().zero_gradients();
    const double loss = model->forward_backward(batch, static_cast<float>(1 / tokens), nullptr) / tokens;
    optimizer->step(static_cast<std::uint64_t>(step), 3e-4, false);
    return loss;
  };
  return {"recipe " + recipe_name, run, {}, {}, 0};
}

Contender eager(const spec::ModelSpec& spec) {
  const auto initial = model_of(spec, "bf16");
  auto trainer = std::make_shared<oracle::EagerTrainer>(spec, initial->parameters(), spec::OptimizerSpec{});
  return {"eager FP32", [trainer](const MicroBatch& batch, int) { return trainer->step(batch); }, {}, {}, 0};
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

void print_header(const spec::ModelSpec& model, int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) command += std::string(i > 0 ? " " : "") + argv[i];
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  std::printf("command   %s\nmachine   %s, %d threads\nversions  libtorch %s, g++ %s\ndate      %s\n",
              command.c_str(), processor().c_str(), at::get_num_threads(), TORCH_VERSION, __VERSION__, date);
  std::printf("model     %lld parameters, %lld tokens a step\n\n",
              static_cast<long long>(parameter_count(model)), static_cast<long long>(kSequences * kLength));
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// The fastest round is what the code can do; the median is what the machine let it do. The processors' time
// hardly changes when others use the machine, as long as OMP_WAIT_POLICY=passive keeps waiting threads from
// spinning.
void print_table(const std::vector<Contender>& contenders) {
  const double tokens = kSequences * kLength;
  std::printf("%-14s %12s %12s %12s %12s %14s %10s\n", "", "fastest ms", "median ms", "cpu ms", "tokens/s",
              "x first row", "loss");
  const double first = *std::min_element(contenders[0].seconds.begin(), contenders[0].seconds.end());
  for (const Contender& c : contenders) {
    const double fastest = *std::min_element(c.seconds.begin(), c.seconds.end());
    std::printf("%-14s %12.1f %12.1f %12.1f %12.0f %14.2f %10.4f\n", c.name.c_str(), 1e3 * fastest,
                1e3 * median(c.seconds), 1e3 * *std::min_element(c.cpu_seconds.begin(), c.cpu_seconds.end()),
                tokens / fastest, first / fastest, c.loss);
  }
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--rounds") == 0) {
      options.rounds = std::atoi(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--only") == 0) {
      options.only = argv[i + 1];
    } else {
      return false;
    }
  }
  const bool known =
      options.only.empty() || options.only == "eager" || options.only == "bf16" || options.only == "coat";
  return argc % 2 == 1 && options.rounds > 0 && known;
}

int run(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--rounds N] [--only eager|bf16|coat]\n", argv[0]);
    return 2;
  }
  cpu_memory::install();  // as the trainer does; the eager program gains by it too
  const spec::ModelSpec model;
  std::vector<Contender> contenders;
  if (options.only.empty() || options.only == "eager") contenders.push_back(eager(model));
  for (const char* name : {"bf16", "coat"}) {
    if (options.only.empty() || options.only == name) contenders.push_back(ours(model, name));
  }
  print_header(model, argc, argv);
  const MicroBatch batch = random_batch(model);
  constexpr int kWarmUp = 2;
  for (int step = 1; step <= kWarmUp + options.rounds; ++step) {
    for (Contender& contender : contenders) {
      const std::clock_t cpu_start = std::clock();
      const auto start = std::chrono::steady_clock::now();
      contender.loss = contender.run(batch, step);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (step <= kWarmUp) continue;
      contender.seconds.push_back(elapsed.count());
      contender.cpu_seconds.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
    }
  }
  print_table(contenders);
  return 0;
}

}  // namespace
}  // namespace coat

int main(int argc, char** argv) { return coat::run(argc, argv); }
