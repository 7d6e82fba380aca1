#include "tests/bench/moment_staleness.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/bench/stored_moment.h"

namespace coat::bench {
namespace {

constexpr std::size_t kElements = 128 * 64;
constexpr std::size_t kShrinks = 10;  // every tenth element's gradient does

struct Ratios {
  double mean = 0, geometric = 0;
};

Ratios ratios(const std::vector<float>& stored, const std::vector<float>& exact) {
  Ratios result;
  constexpr double kCount = (kElements + kShrinks - 1) / kShrinks;
  for (std::size_t i = 0; i < kElements; i += kShrinks) {
    const double ratio = double{stored[i]} / double{exact[i]};
    result.mean += ratio / kCount;
    result.geometric += std::log(ratio) / kCount;
  }
  result.geometric = std::exp(result.geometric);
  return result;
}

class Simulation {
 public:
  Simulation(const MomentFormat& format, double beta2)
      : beta2_(static_cast<float>(beta2)),
        stored_(format, MomentUse::kSecond, kElements),
        deviation_(kElements),
        exact_(kElements),
        kept_(kElements) {
    std::normal_distribution<float> normal;
    for (float& deviation : deviation_) deviation = 1e-3f * std::exp(0.5f * normal(random_));
  }

  void shrink() {
    for (std::size_t i = 0; i < kElements; i += kShrinks) deviation_[i] *= 0.1f;
  }
  void run(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) {
      for (std::size_t j = 0; j < kElements; ++j) {
        const float g = deviation_[j] * normal_(random_);
        exact_[j] = beta2_ * exact_[j] + (1.0f - beta2_) * (g * g);
        kept_[j] = beta2_ * kept_[j] + (1.0f - beta2_) * (g * g);
      }
      stored_.store(kept_, ++step_, 0);
      stored_.load(kept_);
    }
  }
  Ratios now() const { return ratios(kept_, exact_); }

 private:
  float beta2_;
  std::mt19937_64 random_{1};
  std::normal_distribution<float> normal_;
  StoredMoment stored_;
  std::vector<float> deviation_, exact_, kept_;
  std::uint64_t step_ = 0;
};

}  // namespace

Staleness staleness(const MomentFormat& format, double beta2) {
  const auto time_constant = static_cast<std::int64_t>(std::lround(1.0 / (1.0 - beta2)));
  Simulation simulation(format, beta2);
  simulation.run(3 * time_constant);
  simulation.shrink();
  simulation.run(3 * time_constant);
  const Ratios after3 = simulation.now();
  simulation.run(3 * time_constant);
  const Ratios after6 = simulation.now();
  return {after3.mean, after3.geometric, after6.mean, after6.geometric};
}

}  // namespace coat::bench
