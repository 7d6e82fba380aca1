// Every operation gives the same bits with one thread, two and three.
#include <functional>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/optimizer_state.h"

namespace coat::kernels::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

void append(Bytes& all, const OwnedMatrix& matrix) {
  all.insert(all.end(), matrix.data().begin(), matrix.data().end());
  all.insert(all.end(), matrix.scale().begin(), matrix.scale().end());
}

template <typename T>
void append(Bytes& all, const std::vector<T>& values) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  all.insert(all.end(), bytes, bytes + values.size() * sizeof(T));
}

class ThreadCountTest : public testing::Test {
 protected:
  ~ThreadCountTest() override { at::set_num_threads(before_); }

  static void expect_same_bits(const std::function<Bytes()>& run) {
    at::set_num_threads(1);
    const Bytes one = run();
    ASSERT_FALSE(one.empty());
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      EXPECT_EQ(run(), one) << threads << " threads";
    }
  }

 private:
  int before_ = at::get_num_threads();
};

TEST_F(ThreadCountTest, Quantize) {
  const OwnedMatrix in = make_matrix(normal_values(300 * 700, 1), kBf16, 300, 700);
  for (const TensorFormat& format : {kE4M3Tensor, kE5M2Tensor, kE4M3Group16, kBf16}) {
    expect_same_bits([&] {
      OwnedMatrix out(format, 300, 700);
      cpu_kernels().quantize({.in = in.view(), .out = out.view()}, {});
      Bytes all;
      append(all, out);
      return all;
    });
  }
}

TEST_F(ThreadCountTest, RmsNorm) {
  const OwnedMatrix x = make_matrix(normal_values(500 * 256, 1), kE4M3Group16, 500, 256);
  const OwnedMatrix dy = make_matrix(normal_values(500 * 256, 2), kBf16, 500, 256);
  const std::vector<float> weight = normal_values(256, 3);
  expect_same_bits([&] {
    OwnedMatrix y(kBf16, 500, 256), dx(kBf16, 500, 256);
    std::vector<float> rstd(500), dweight(256), amax(1);
    cpu_kernels().rms_norm_forward({.x = x.view(),
                                    .weight = weight.data(),
                                    .eps = 1e-5f,
                                    .y = y.view(),
                                    .rstd = rstd.data(),
                                    .amax_out = amax.data()},
                                   {});
    cpu_kernels().rms_norm_backward({.x = x.view(),
                                     .weight = weight.data(),
                                     .rstd = rstd.data(),
                                     .dy = dy.view(),
                                     .dx = dx.view(),
                                     .dweight = dweight.data()},
                                    {});
    Bytes all;
    append(all, y);
    append(all, dx);
    append(all, rstd);
    append(all, dweight);
    append(all, amax);
    return all;
  });
}

TEST_F(ThreadCountTest, SwigluAndResidual) {
  const OwnedMatrix gate = make_matrix(normal_values(300 * 700, 1), kE4M3Group16, 300, 700);
  const OwnedMatrix up = make_matrix(normal_values(300 * 700, 2), kE4M3Group16, 300, 700);
  const OwnedMatrix dproduct = make_matrix(normal_values(300 * 700, 3), kBf16, 300, 700);
  expect_same_bits([&] {
    OwnedMatrix product(kBf16, 300, 700), dgate(kBf16, 300, 700), dup(kBf16, 300, 700), sum(kBf16, 300, 700);
    std::vector<float> amax(4);
    cpu_kernels().swiglu_forward(
        {.gate = gate.view(), .up = up.view(), .product = product.view(), .amax_out = amax.data()}, {});
    cpu_kernels().swiglu_backward({.gate = gate.view(),
                                   .up = up.view(),
                                   .dproduct = dproduct.view(),
                                   .dgate = dgate.view(),
                                   .dup = dup.view(),
                                   .dgate_amax_out = amax.data() + 1,
                                   .dup_amax_out = amax.data() + 2},
                                  {});
    cpu_kernels().residual_add(
        {.a = product.view(), .b = dproduct.view(), .sum = sum.view(), .amax_out = amax.data() + 3}, {});
    Bytes all;
    append(all, product);
    append(all, dgate);
    append(all, dup);
    append(all, sum);
    append(all, amax);
    return all;
  });
}

TEST_F(ThreadCountTest, LayerNormGeluAndWhatBackwardMakesAgain) {
  const OwnedMatrix x = make_matrix(normal_values(300 * 700, 1), kE4M3Group16, 300, 700);
  const OwnedMatrix dy = make_matrix(normal_values(300 * 700, 2), kBf16, 300, 700);
  const std::vector<float> weight = normal_values(700, 3), rstd = normal_values(300, 4);
  expect_same_bits([&] {
    OwnedMatrix y(kBf16, 300, 700), dx(kBf16, 300, 700), again(kE4M3Tensor, 300, 700),
        product(kE4M3Tensor, 300, 700);
    std::vector<float> mean(300), scale(300), amax(3, 4.0f);
    cpu_kernels().layer_norm_forward({.x = x.view(),
                                      .eps = 1e-5f,
                                      .y = y.view(),
                                      .mean = mean.data(),
                                      .rstd = scale.data(),
                                      .amax_out = amax.data()},
                                     {});
    cpu_kernels().layer_norm_backward(
        {.x = x.view(), .mean = mean.data(), .rstd = scale.data(), .dy = dy.view(), .dx = dx.view()}, {});
    Bytes all;
    append(all, y);
    append(all, dx);
    cpu_kernels().gelu_forward({.x = x.view(), .y = y.view(), .amax_out = amax.data() + 1}, {});
    cpu_kernels().gelu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()}, {});
    cpu_kernels().rms_norm_recompute({.x = x.view(),
                                      .weight = weight.data(),
                                      .rstd = rstd.data(),
                                      .amax = amax.data() + 2,
                                      .output = {again.view(), {}}},
                                     {});
    cpu_kernels().swiglu_recompute(
        {.gate = x.view(), .up = x.view(), .amax = amax.data() + 2, .output = {product.view(), {}}}, {});
    for (const OwnedMatrix* matrix : {&y, &dx, &again, &product}) append(all, *matrix);
    append(all, amax);
    return all;
  });
}

TEST_F(ThreadCountTest, RopeEmbeddingAndCrossEntropy) {
  const std::vector<float> weight = normal_values(256 * 192, 1), logit_values = normal_values(400 * 300, 2);
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 400; ++i) tokens.push_back(i * i % 256);
  expect_same_bits([&] {
    OwnedMatrix x(kBf16, 400, 192), logits = make_matrix(logit_values, kFp32, 400, 300);
    std::vector<float> dweight(weight.size());
    std::vector<double> loss(1);
    cpu_kernels().embedding_forward(
        {.tokens = tokens.data(), .weight = {weight.data(), nullptr, kFp32, 256, 192}, .out = x.view()}, {});
    cpu_kernels().rope({.x = x.view(), .heads = 3, .head_dim = 64, .sequence_length = 100, .theta = 10000.0f},
                       {});
    cpu_kernels().embedding_backward(
        {.tokens = tokens.data(), .dy = x.view(), .vocab = 256, .dweight = dweight.data()}, {});
    cpu_kernels().cross_entropy({.logits = logits.view(),
                                 .targets = tokens.data(),
                                 .mask = nullptr,
                                 .gradient_scale = 0.5f,
                                 .loss_sum = loss.data()},
                                {});
    Bytes all;
    append(all, x);
    append(all, logits);
    append(all, dweight);
    append(all, loss);
    return all;
  });
}

// Products of several blocks, of one block alone, and with a long sum, which a library likes to cut among
// threads.
TEST_F(ThreadCountTest, Gemm) {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size& size : {Size{300, 520, 256}, Size{64, 64, 4096}, Size{128, 256, 2048}, Size{1, 256, 4096},
                           Size{256, 688, 2048}}) {
    for (const Layout layout : {Layout::kKMajor, Layout::kMnMajor}) {
      const bool k_major = layout == Layout::kKMajor;
      const OwnedMatrix a = make_matrix(normal_values(size.m * size.k, 1), kBf16, k_major ? size.m : size.k,
                                        k_major ? size.k : size.m);
      const OwnedMatrix b = make_matrix(normal_values(size.n * size.k, 2), kE4M3Tensor,
                                        k_major ? size.n : size.k, k_major ? size.k : size.n);
      for (const TensorFormat& format : {kFp32, kBf16, kE4M3Group16}) {
        expect_same_bits([&] {
          OwnedMatrix out(format, size.m, size.n);
          cpu_kernels().gemm(
              {.a = a.view(), .b = b.view(), .a_layout = layout, .b_layout = layout, .out = out.view()}, {});
          Bytes all;
          append(all, out);
          return all;
        });
      }
    }
  }
}

TEST_F(ThreadCountTest, OptimizerAndErrors) {
  constexpr std::int64_t kCount = 100'000;
  const std::vector<float> gradient = normal_values(kCount, 1, 1e-3), initial = normal_values(kCount, 2);
  const OwnedMatrix reference = make_matrix(initial, kFp32, 100, 1000);
  const OwnedMatrix stored = make_matrix(initial, kE4M3Group16, 100, 1000);
  expect_same_bits([&] {
    State state(moment_format(MomentCode::kE4M3, true, 128, Rounding::kStochastic), initial);
    AdamWArgs args = args_of(state.m.format, 1);
    args.tensors = {state.tensor(gradient)};
    std::vector<AdamWErrors> errors(1);
    std::vector<ErrorSums> sums(1);
    cpu_kernels().adamw_measured(args, errors.data(), {});
    cpu_kernels().quantization_error(reference.view(), stored.view(), sums.data(), {});
    std::vector<double> squares(1);
    cpu_kernels().sum_of_squares({{gradient.data(), Format::kFp32, kCount}}, squares.data(), {});
    Bytes all;
    append(all, state.value);
    append(all, state.m.data);
    append(all, state.v.data);
    append(all, state.m.row);
    append(all, state.v.amax);
    append(all, errors);
    append(all, sums);
    append(all, squares);
    return all;
  });
}

}  // namespace
}  // namespace coat::kernels::test
