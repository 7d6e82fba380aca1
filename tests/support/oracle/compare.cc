#include "tests/support/oracle/compare.h"

#include <ATen/ATen.h>

#include "worker/core/model/initial_weights.h"

namespace coat::oracle {
namespace {

double norm_of(const at::Tensor& x) { return x.detach().to(at::kDouble).norm().item<double>(); }

}  // namespace

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const double error = norm_of(actual.detach().to(at::kDouble) - expected.detach().to(at::kDouble));
  return error == 0 ? 0 : error / norm_of(expected);
}

double cosine(const at::Tensor& a, const at::Tensor& b) {
  const double dot = (a.detach().to(at::kDouble) * b.detach().to(at::kDouble)).sum().item<double>();
  return dot / (norm_of(a) * norm_of(b));
}

double norm_ratio(const at::Tensor& a, const at::Tensor& b) { return norm_of(a) / norm_of(b); }

at::Tensor random_normal(at::IntArrayRef shape, double deviation, std::uint64_t seed) {
  at::Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  values.copy_(normal_values(values.sizes(), deviation, seed, 0));
  return values;
}

}  // namespace coat::oracle
