#include "worker/core/quant/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spec/job_spec.h"
#include "worker/core/base/error.h"

namespace coat {
namespace {

using testing::HasSubstr;

TEST(RecipeTest, PresetsAreThoseThatASpecMayName) { EXPECT_EQ(recipe_preset_names(), spec::recipe_names()); }

TEST(RecipeTest, EveryPresetIsFoundByItsName) {
  for (const std::string& name : recipe_preset_names()) EXPECT_EQ(recipe(name).name, name);
}

TEST(RecipeTest, CoatSavesFp8AndRecomputes) {
  const Recipe& coat = recipe("coat");
  EXPECT_EQ(coat.linear_operand, (TensorFormat{Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kFp32}));
  EXPECT_EQ(coat.linear_gradient, (TensorFormat{Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kFp32}));
  EXPECT_EQ(coat.saved_nonlinear, (TensorFormat{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16}));
  EXPECT_FALSE(coat.save_norm_output || coat.save_activation || coat.save_product);
  EXPECT_EQ(coat.weight_values, Format::kFp32);
  EXPECT_EQ(coat.moment1.code, MomentCode::kOctave8);
  EXPECT_EQ(coat.moment2.code, MomentCode::kOctave8Unsigned);
  EXPECT_NO_THROW(require_usable(coat.moment1, MomentUse::kFirst));
  EXPECT_NO_THROW(require_usable(coat.moment2, MomentUse::kSecond));
  EXPECT_EQ(coat.moment2.rounding, Rounding::kStochastic);
  EXPECT_EQ(coat.weights, WeightFormat::kBf16Residual);
  EXPECT_EQ(coat.weight_gradient, Format::kBf16);
  // Both moments: 2 bytes a value, and 5 bytes for each group of 128.
  EXPECT_EQ(coat.moment1.total_bytes(128'000) + coat.moment2.total_bytes(128'000), 2 * (128'000 + 5 * 1000));
}

// COAT.md 1.4 and 1.5.
TEST(RecipeTest, CoatPaperSavesWhatTheReferenceSaves) {
  const Recipe& paper = recipe("coat-paper");
  EXPECT_TRUE(paper.save_norm_output && paper.save_activation && paper.save_product);
  EXPECT_TRUE(paper.product_reads_saved_activation && paper.round_activation_gradient);
  EXPECT_EQ(paper.weight_values, Format::kBf16);
  EXPECT_EQ(paper.weight_gradient_product, Format::kBf16);
  EXPECT_EQ(paper.input_gradient_sum, Format::kBf16);
  for (const TensorFormat& format : {paper.linear_operand, paper.linear_gradient, paper.saved_nonlinear}) {
    EXPECT_EQ(format.scale_format, ScaleFormat::kBf16);
    EXPECT_EQ(format.rule.added, 1e-10f);
    EXPECT_EQ(format.rule.codes_use_stored_scale, format.scaling == Scaling::kTensor);
  }
  EXPECT_EQ(paper.moment1, moment_format(MomentCode::kE4M3, /*expand=*/true, 128, Rounding::kNearestEven));
  EXPECT_EQ(paper.moment1, paper.moment2);
  EXPECT_EQ(paper.moment1.range_bound, 448.0 * 448.0 / 2);
}

TEST(RecipeTest, Bf16HasNoScalesAndFp32Moments) {
  const Recipe& bf16 = recipe("bf16");
  for (const TensorFormat& format :
       {bf16.linear_operand, bf16.linear_gradient, bf16.saved_nonlinear, bf16.saved_attention}) {
    EXPECT_EQ(format, (TensorFormat{Format::kBf16, Scaling::kNone, 0, ScaleFormat::kFp32}));
  }
  EXPECT_TRUE(bf16.save_norm_output && bf16.save_activation && bf16.save_product);
  EXPECT_EQ(bf16.moment1.total_bytes(1000), 4000);
}

TEST(RecipeTest, AnUnknownNameIsRefusedWithTheList) {
  try {
    recipe("bf61");
    FAIL() << "accepted";
  } catch (const SpecError& error) {
    EXPECT_EQ(error.field, "recipe");
    EXPECT_THAT(error.what(), HasSubstr("bf61"));
    for (const std::string& name : recipe_preset_names()) EXPECT_THAT(error.fix, HasSubstr(name));
  }
}

}  // namespace
}  // namespace coat
