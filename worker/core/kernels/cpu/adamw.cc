#include <cmath>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/moment_codec.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

// A step's scalars as the element loop uses them.
struct Coefficients {
  float gradient_scale, beta1, beta2, eps, learning_rate, bias_correction1, root_bias_correction2;
};

Coefficients coefficients_of(const AdamWArgs& args) {
  return {args.gradient_scale != nullptr ? *args.gradient_scale : 1.0f,
          args.beta1,
          args.beta2,
          args.eps,
          args.learning_rate,
          static_cast<float>(args.bias_correction1),
          static_cast<float>(std::sqrt(args.bias_correction2))};
}

void update(const Coefficients& c, float weight_decay, std::int64_t n, const float* __restrict gradient,
            float* __restrict value, float* __restrict m, float* __restrict v) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    m[i] = c.beta1 * m[i] + (1.0f - c.beta1) * g;
    v[i] = c.beta2 * v[i] + (1.0f - c.beta2) * (g * g);
    const float denominator = (std::sqrt(v[i]) / c.root_bias_correction2 + c.eps) * c.bias_correction1;
    value[i] -= c.learning_rate * (m[i] / denominator + weight_decay * value[i]);
  }
}

void check(const MomentFormat& format, const char* name) {
  if (format.format != Format::kFp32 && format.format != Format::kE4M3) {
    throw std::logic_error(std::string("adamw: ") + name + " must be FP32 or E4M3");
  }
  if (format.group <= 0) throw std::logic_error(std::string("adamw: ") + name + " has groups of no elements");
}

// The moment's groups as a scaling of the flattened tensor, for TileGrid.
TensorFormat as_row_format(const MomentFormat& format) {
  if (format.format == Format::kFp32) return {Format::kFp32, Scaling::kNone, 0, Format::kFp32};
  return {format.format, Scaling::kGroup, format.group, Format::kFp32};
}

// All tensors of a step, cut into tiles that are numbered through.
class Step {
 public:
  explicit Step(const AdamWArgs& args)
      : args_(args),
        coefficients_(coefficients_of(args)),
        range1_(args.moment1.range_bound),
        range2_(args.moment2.range_bound) {
    for (const AdamWTensor& tensor : args.tensors) {
      grids_.emplace_back(1, tensor.elements, as_row_format(args.moment1), as_row_format(args.moment2));
      first_tile_.push_back(tiles_);
      tiles_ += grids_.back().grid.count();
    }
  }

  std::int64_t tiles() const { return tiles_; }

  // Tiles [begin, end); m_errors and v_errors hold one entry a tile, or nullptr.
  void run(std::int64_t begin, std::int64_t end, ErrorSums* m_errors, ErrorSums* v_errors) const {
    std::vector<float> m, v, scratch;
    std::size_t tensor = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      while (tensor + 1 < grids_.size() && first_tile_[tensor + 1] <= index) ++tensor;
      const Tile tile = grids_[tensor].grid.at(index - first_tile_[tensor]);
      m.resize(std::max(m.size(), static_cast<std::size_t>(tile.n)));
      v.resize(m.size());
      run_tile(args_.tensors[tensor], tile, m.data(), v.data(), scratch,
               m_errors ? m_errors + index : nullptr, v_errors ? v_errors + index : nullptr);
    }
  }

 private:
  struct Grid {
    Grid(std::int64_t rows, std::int64_t cols, const TensorFormat& a, const TensorFormat& b)
        : grid(rows, cols, {a, b}) {}
    TileGrid grid;
  };

  void run_tile(const AdamWTensor& tensor, const Tile& tile, float* m, float* v, std::vector<float>& scratch,
                ErrorSums* m_error, ErrorSums* v_error) const {
    const MomentCodec moment1(args_.moment1, range1_, tensor.m, tensor.m_amax, tensor.m_k16);
    const MomentCodec moment2(args_.moment2, range2_, tensor.v, tensor.v_amax, tensor.v_k16);
    moment1.load(tile.col, tile.n, m);
    moment2.load(tile.col, tile.n, v);
    update(coefficients_, tensor.decay ? args_.weight_decay : 0.0f, tile.n, tensor.gradient + tile.col,
           tensor.value + tile.col, m, v);
    PhiloxStream random{args_.seed, args_.step, tensor.id, 1};
    moment1.store(tile.col, tile.n, m, random, tensor.first_index, scratch);
    random.moment = 2;
    moment2.store(tile.col, tile.n, v, random, tensor.first_index, scratch);
    if (m_error != nullptr) moment1.measure(tile.col, tile.n, m, m_error, scratch);
    if (v_error != nullptr) moment2.measure(tile.col, tile.n, v, v_error, scratch);
  }

  const AdamWArgs& args_;
  Coefficients coefficients_;
  ExpansionRange range1_, range2_;
  std::vector<Grid> grids_;
  std::vector<std::int64_t> first_tile_;
  std::int64_t tiles_ = 0;
};

void add(const std::vector<ErrorSums>& parts, ErrorSums* total) {
  for (const ErrorSums& part : parts) {
    total->error_squared += part.error_squared;
    total->reference_squared += part.reference_squared;
    total->saturated += part.saturated;
    total->underflowed += part.underflowed;
    total->elements += part.elements;
    total->k_sum += part.k_sum;
    total->k_groups += part.k_groups;
  }
}

}  // namespace

void adamw(const AdamWArgs& args, ErrorSums* m, ErrorSums* v) {
  check(args.moment1, "the first moment");
  check(args.moment2, "the second moment");
  const Step step(args);
  const auto tiles = static_cast<std::size_t>(step.tiles());
  std::vector<ErrorSums> m_errors(m != nullptr ? tiles : 0), v_errors(v != nullptr ? tiles : 0);
  at::parallel_for(0, step.tiles(), 8, [&](std::int64_t begin, std::int64_t end) {
    step.run(begin, end, m != nullptr ? m_errors.data() : nullptr, v != nullptr ? v_errors.data() : nullptr);
  });
  if (m != nullptr) add(m_errors, m);
  if (v != nullptr) add(v_errors, v);
}

void sum_of_squares(const float* data, std::int64_t elements, double* out) {
  constexpr std::int64_t kBlock = 4096, kLanes = 8;
  const std::int64_t blocks = (elements + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  at::parallel_for(0, blocks, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const float* values = data + block * kBlock;
      const std::int64_t n = std::min(kBlock, elements - block * kBlock);
      double lane[kLanes] = {};
      std::int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        for (std::int64_t j = 0; j < kLanes; ++j) {
          const double value = values[i + j];
          lane[j] += value * value;
        }
      }
      for (std::int64_t j = 0; i < n; ++i, ++j) lane[j] += static_cast<double>(values[i]) * values[i];
      double& sum = sums[static_cast<std::size_t>(block)];
      for (const double part : lane) sum += part;
    }
  });
  // Blocks in 256 lanes, and lanes by halves: what one block of 256 threads does.
  constexpr std::size_t kSumLanes = 256;
  double total[kSumLanes] = {};
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % kSumLanes] += sums[i];
  for (std::size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) total[j] += total[j + width];
  }
  *out += total[0];
}

}  // namespace coat::kernels::cpu
