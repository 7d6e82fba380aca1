// Parameters with their moments for tests of the optimizer's kernel, and a decoder that knows the formats by
// their definition alone.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/moment_table.h"

namespace coat::kernels::test {

// One stored moment, starting from zero.
struct StoredMoment {
  StoredMoment(const MomentFormat& moment_format, std::size_t elements);
  MomentData view();
  // value = amax * (value of the code's row).
  std::vector<double> decoded() const;
  double amax_of(std::size_t element) const;
  bool operator==(const StoredMoment&) const = default;

  MomentFormat format;
  std::size_t elements;
  std::vector<std::uint8_t> data;
  std::vector<float> amax;  // FP32, or the BF16 codes below
  std::vector<std::uint16_t> amax_bf16;
  std::vector<std::uint8_t> row;
};

// A parameter in FP32 with both moments.
struct State {
  State(const MomentFormat& format, std::vector<float> initial) : State(format, format, std::move(initial)) {}
  State(const MomentFormat& format1, const MomentFormat& format2, std::vector<float> initial)
      : value(std::move(initial)), m(format1, value.size()), v(format2, value.size()) {}

  AdamWTensor tensor(const std::vector<float>& gradient);
  std::vector<double> moment1() const { return m.decoded(); }
  std::vector<double> moment2() const { return v.decoded(); }
  bool operator==(const State&) const = default;

  std::vector<float> value;
  StoredMoment m, v;
};

// Both moments in one format; learning rate 1e-2, decay 0.1, seed 3.
AdamWArgs args_of(const MomentFormat& format, std::uint64_t step, double beta1 = 0.9, double beta2 = 0.95);

// One step of the twin. The arguments' tensors are those of `state`.
void run(State& state, const std::vector<float>& gradient, AdamWArgs args);

// Stores `values` as the first moment (beta1 = 0) and their squares as the second, at learning rate 0.
void store_values(State& state, const std::vector<float>& values);

// Normal numbers of 1e-3 times a spread of e^normal: what gradients look like.
std::vector<float> lognormal(std::int64_t count, std::uint32_t seed);

}  // namespace coat::kernels::test
