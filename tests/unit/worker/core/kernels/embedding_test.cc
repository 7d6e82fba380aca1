#include <cmath>
#include <numeric>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/unit/worker/core/kernels/matrices.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::test {
namespace {

TEST(ResidualAddTest, RoundsOnceAndQuantizesTheUnroundedSum) {
  for (const std::int64_t cols : {1, 16, 17, 700, 5120}) {
    const std::int64_t rows = 33;
    const OwnedMatrix a = make_matrix(normal_values(rows * cols, 1), kBf16, rows, cols);
    const OwnedMatrix b = make_matrix(normal_values(rows * cols, 2, 0.01), kBf16, rows, cols);
    OwnedMatrix sum(kBf16, rows, cols), quantized(kE4M3Group16, rows, cols);
    float amax = 0;
    cpu_kernels().residual_add(
        {.a = a.view(), .b = b.view(), .sum = sum.view(), .quantized = quantized.view(), .amax_out = &amax},
        {});
    const std::vector<double> left = decoded(a.view()), right = decoded(b.view()), out = decoded(sum.view());
    std::vector<float> exact;
    float largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      exact.push_back(static_cast<float>(left[i]) + static_cast<float>(right[i]));
      ASSERT_EQ(static_cast<float>(out[i]), round_bf16(exact[i]));
      largest = std::max(largest, std::fabs(static_cast<float>(out[i])));
    }
    EXPECT_EQ(amax, largest);
    const OwnedMatrix expected = make_matrix(exact, kE4M3Group16, rows, cols);
    EXPECT_EQ(quantized.data(), expected.data());
    EXPECT_EQ(quantized.scale(), expected.scale());
  }
}

TEST(ResidualAddTest, MayOverwriteAnOperand) {
  OwnedMatrix a = make_matrix(normal_values(9 * 40, 1), kBf16, 9, 40);
  const OwnedMatrix b = make_matrix(normal_values(9 * 40, 2), kBf16, 9, 40);
  OwnedMatrix sum(kBf16, 9, 40), whole(kE4M3Tensor, 9, 40);
  cpu_kernels().residual_add({.a = a.view(), .b = b.view(), .sum = sum.view()}, {});
  const Matrix in_place = a.view();
  cpu_kernels().residual_add({.a = in_place, .b = b.view(), .sum = in_place}, {});
  EXPECT_EQ(a.data(), sum.data());
  EXPECT_THROW(cpu_kernels().residual_add(
                   {.a = in_place, .b = b.view(), .sum = in_place, .quantized = whole.view()}, {}),
               std::logic_error);
}

TEST(EmbeddingTest, ForwardCopiesRows) {
  for (const std::int32_t vocab : {11, 50'257}) {
    const std::vector<float> weight = normal_values(vocab * 33, 1);
    const std::vector<std::int32_t> tokens = {0, vocab - 1, 3, 3, 7};
    OwnedMatrix out(kBf16, 5, 33), quantized(kE4M3Group16, 5, 33);
    cpu_kernels().embedding_forward({.tokens = tokens.data(),
                                     .weight = {weight.data(), nullptr, kFp32, vocab, 33},
                                     .out = out.view(),
                                     .quantized = quantized.view()},
                                    {});
    std::vector<float> rows;
    for (const std::int32_t token : tokens) {
      rows.insert(rows.end(), weight.begin() + token * 33, weight.begin() + (token + 1) * 33);
    }
    EXPECT_EQ(out.data(), make_matrix(rows, kBf16, 5, 33).data());
    EXPECT_EQ(quantized.data(), make_matrix(rows, kE4M3Group16, 5, 33).data());
  }
}

TEST(EmbeddingTest, BackwardAddsRowsInOrder) {
  constexpr std::int64_t kRows = 500, kCols = 130, kVocab = 7;
  std::vector<std::int32_t> tokens;
  for (std::int32_t row = 0; row < kRows; ++row) tokens.push_back(row * row % kVocab);
  const OwnedMatrix dy = make_matrix(normal_values(kRows * kCols, 2), kBf16, kRows, kCols);
  std::vector<float> dweight(kVocab * kCols, 0.5f), expected = dweight;
  cpu_kernels().embedding_backward(
      {.tokens = tokens.data(), .dy = dy.view(), .vocab = kVocab, .dweight = dweight.data()}, {});
  const std::vector<double> values = decoded(dy.view());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto token = static_cast<std::size_t>(tokens[i / kCols]);
    expected[token * kCols + i % kCols] += static_cast<float>(values[i]);
  }
  EXPECT_EQ(dweight, expected);
}

TEST(EmbeddingTest, RefusesATokenOutsideTheVocabulary) {
  const std::vector<float> weight(4 * 8);
  std::vector<float> dweight(4 * 8);
  OwnedMatrix out(kBf16, 2, 8);
  for (const std::int32_t bad : {-1, 4}) {
    const std::vector<std::int32_t> tokens = {1, bad};
    EXPECT_THROW(
        cpu_kernels().embedding_forward(
            {.tokens = tokens.data(), .weight = {weight.data(), nullptr, kFp32, 4, 8}, .out = out.view()},
            {}),
        std::logic_error);
    EXPECT_THROW(cpu_kernels().embedding_backward(
                     {.tokens = tokens.data(), .dy = out.view(), .vocab = 4, .dweight = dweight.data()}, {}),
                 std::logic_error);
  }
}

}  // namespace
}  // namespace coat::kernels::test
