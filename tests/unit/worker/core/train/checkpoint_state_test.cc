#include "worker/core/train/checkpoint_state.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat::train {
namespace {

using testing::ElementsAre;

// BF16 weights are saved with the byte that goes on where they end.
TEST(CheckpointStateTest, ParametersAreSavedWithTheirResiduals) {
  ParameterRegistry registry;
  registry.add("embed", {4, 3}, true, at::kCPU, {.value = at::kBFloat16, .residual = true});
  registry.add("norm", {3}, false, at::kCPU);
  const HostViews views(parameter_tensors(registry), false);
  std::vector<std::string> names, types;
  for (const checkpoint::HostTensor& tensor : views.tensors()) {
    names.push_back(tensor.name);
    types.push_back(tensor.dtype);
  }
  EXPECT_THAT(names, ElementsAre("embed", "embed.residual", "norm"));
  EXPECT_THAT(types, ElementsAre("bfloat16", "int8", "float32"));
}

// A run goes on from moments that are stored as it stores them; how it rounds them is its own affair.
TEST(CheckpointStateTest, IdentityTellsHowMomentsAreStored) {
  const auto moment = [](const MomentFormat& format) {
    Recipe recipe;
    recipe.moment1 = format;
    const Identity identity = spec_identity({}, recipe);
    return std::map<std::string, std::string>(identity.begin(), identity.end()).at("recipe.moment1");
  };
  const MomentFormat base = moment_format(MomentCode::kE4M3, true, 128, Rounding::kStochastic);
  EXPECT_EQ(moment({}), "fp32");
  MomentFormat other = base;
  other.rounding = Rounding::kNearestEven;
  EXPECT_EQ(moment(other), moment(base));
  other = base;
  other.group = 64;
  EXPECT_NE(moment(other), moment(base));
  other = base;
  other.amax_format = Format::kBf16;
  EXPECT_NE(moment(other), moment(base));
  other = base;
  other.range_bound = kE4M3FullRange;
  EXPECT_NE(moment(other), moment(base));
  other = base;
  other.expand = false;
  EXPECT_NE(moment(other), moment(base));
  other = base;
  other.code = MomentCode::kOctave8;
  EXPECT_NE(moment(other), moment(base));
}

}  // namespace
}  // namespace coat::train
