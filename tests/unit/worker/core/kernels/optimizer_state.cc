#include "tests/unit/worker/core/kernels/optimizer_state.h"

#include <cmath>

#include "worker/core/quant/bf16.h"

namespace coat::kernels::test {

StoredMoment::StoredMoment(const MomentFormat& moment_format, std::size_t count)
    : format(moment_format), elements(count), data(count * (format.is_quantized() ? 1 : 4)) {
  const auto groups = static_cast<std::size_t>(format.groups(static_cast<std::int64_t>(count)));
  if (format.amax_format == Format::kBf16) {
    amax_bf16.resize(groups);
  } else {
    amax.resize(groups);
  }
  if (format.stores_row()) row.resize(groups, kLastRow);
}

MomentData StoredMoment::view() {
  const bool bf16 = format.amax_format == Format::kBf16;
  return {data.data(), bf16 ? static_cast<void*>(amax_bf16.data()) : amax.data(),
          format.stores_row() ? row.data() : nullptr};
}

double StoredMoment::amax_of(std::size_t element) const {
  const std::size_t group = element / static_cast<std::size_t>(format.group);
  return double{format.amax_format == Format::kBf16 ? decode_bf16(amax_bf16[group]) : amax[group]};
}

std::vector<double> StoredMoment::decoded() const {
  std::vector<double> values;
  for (std::size_t i = 0; i < elements; ++i) {
    if (!format.is_quantized()) {
      values.push_back(double{reinterpret_cast<const float*>(data.data())[i]});
      continue;
    }
    const int chosen = format.stores_row() ? row[i / static_cast<std::size_t>(format.group)] : kPlainRow;
    const bool has_sign = is_signed(format.code);
    const float relative = MomentTable::of(format.code).values(chosen)[has_sign ? data[i] & 0x7F : data[i]];
    const auto magnitude = double{static_cast<float>(amax_of(i)) * relative};
    values.push_back(has_sign && (data[i] & 0x80) != 0 ? -magnitude : magnitude);
  }
  return values;
}

AdamWTensor State::tensor(const std::vector<float>& gradient) {
  return {.value = value.data(),
          .gradient = gradient.data(),
          .elements = static_cast<std::int64_t>(value.size()),
          .m = m.view(),
          .v = v.view()};
}

AdamWArgs args_of(const MomentFormat& format, std::uint64_t step, double beta1, double beta2) {
  AdamWArgs args;
  args.moment1 = args.moment2 = format;
  args.learning_rate = 1e-2f;
  args.beta1 = static_cast<float>(beta1);
  args.beta2 = static_cast<float>(beta2);
  args.eps = 1e-8f;
  args.weight_decay = 0.1f;
  args.bias_correction1 = 1 - std::pow(beta1, static_cast<double>(step));
  args.bias_correction2 = 1 - std::pow(beta2, static_cast<double>(step));
  args.seed = 3;
  args.step = step;
  return args;
}

void run(State& state, const std::vector<float>& gradient, AdamWArgs args) {
  args.tensors = {state.tensor(gradient)};
  cpu_kernels().adamw(args, {});
}

void store_values(State& state, const std::vector<float>& values) {
  AdamWArgs args = args_of(state.m.format, 1, 0.0, 0.0);
  args.moment2 = state.v.format;
  args.bias_correction1 = args.bias_correction2 = 1;
  args.learning_rate = 0;
  run(state, values, args);
}

std::vector<float> lognormal(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values = normal_values(count, seed);
  const std::vector<float> exponents = normal_values(count, seed + 1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= 1e-3f * std::exp(exponents[i]);
  return values;
}

}  // namespace coat::kernels::test
