#include "tests/bench/moment_staleness.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/bench/stored_moment.h"

namespace coat::bench {
namespace {

constexpr std::size_t kElements = 128 * 128;
constexpr std::size_t kShrinks = 10;  // every tenth element's gradient does

// One moment of normal gradients with a spread of deviations, stored after every step, beside the same in
// FP32.
class Simulation {
 public:
  Simulation(const MomentFormat& format, MomentUse use, double beta)
      : squares_(use == MomentUse::kSecond),
        beta_(static_cast<float>(beta)),
        stored_(format, use, kElements),
        deviation_(kElements),
        exact_(kElements),
        kept_(kElements) {
    for (float& deviation : deviation_) deviation = 1e-3f * std::exp(0.5f * normal_(random_));
  }

  void shrink() {
    for (std::size_t i = 0; i < kElements; i += kShrinks) deviation_[i] *= 0.1f;
  }
  void run(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) {
      for (std::size_t j = 0; j < kElements; ++j) {
        const float g = deviation_[j] * normal_(random_);
        const float fresh = (1.0f - beta_) * (squares_ ? g * g : g);
        exact_[j] = beta_ * exact_[j] + fresh;
        kept_[j] = beta_ * kept_[j] + fresh;
      }
      stored_.store(kept_, ++step_, 0);
      stored_.load(kept_);
    }
  }

  // Calls visit(stored, exact) for the elements that shrank; returns their number.
  template <typename Visit>
  double for_shrunk(Visit visit) const {
    double count = 0;
    for (std::size_t i = 0; i < kElements; i += kShrinks) {
      visit(double{kept_[i]}, double{exact_[i]});
      ++count;
    }
    return count;
  }

 private:
  bool squares_;
  float beta_;
  std::mt19937_64 random_{1};
  std::normal_distribution<float> normal_;
  StoredMoment stored_;
  std::vector<float> deviation_, exact_, kept_;
  std::uint64_t step_ = 0;
};

StalenessOfM look(const Simulation& simulation, StalenessOfM) {
  double stored_size = 0, size = 0, error = 0, squares = 0;
  simulation.for_shrunk([&](double stored, double exact) {
    stored_size += std::fabs(stored);
    size += std::fabs(exact);
    error += (stored - exact) * (stored - exact);
    squares += exact * exact;
  });
  return {stored_size / size, std::sqrt(error / squares)};
}

StalenessOfV look(const Simulation& simulation, StalenessOfV) {
  double sum = 0, logarithms = 0;
  const double count = simulation.for_shrunk([&](double stored, double exact) {
    sum += stored / exact;
    logarithms += std::log(stored / exact);
  });
  return {sum / count, std::exp(logarithms / count)};
}

template <typename Staleness>
AfterTimeConstants<Staleness> watch(const MomentFormat& format, MomentUse use, double beta) {
  const auto three = 3 * static_cast<std::int64_t>(std::lround(1.0 / (1.0 - beta)));
  Simulation simulation(format, use, beta);
  AfterTimeConstants<Staleness> result;
  simulation.run(three);
  simulation.shrink();
  simulation.run(three);
  result.three = look(simulation, Staleness{});
  simulation.run(three);
  result.six = look(simulation, Staleness{});
  return result;
}

}  // namespace

AfterTimeConstants<StalenessOfM> staleness_of_m(const MomentFormat& format, double beta1) {
  return watch<StalenessOfM>(format, MomentUse::kFirst, beta1);
}

AfterTimeConstants<StalenessOfV> staleness_of_v(const MomentFormat& format, double beta2) {
  return watch<StalenessOfV>(format, MomentUse::kSecond, beta2);
}

}  // namespace coat::bench
