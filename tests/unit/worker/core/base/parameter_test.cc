#include "worker/core/base/parameter.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace coat {
namespace {

TEST(ParameterRegistryTest, KeepsOrderIdsAndAddresses) {
  ParameterRegistry registry;
  Parameter& first = registry.add("embed.weight", {4, 3}, true, at::kCPU);
  for (int i = 0; i < 100; ++i) registry.add("norm." + std::to_string(i), {5}, false, at::kCPU);
  EXPECT_EQ(registry.all().size(), 101u);
  EXPECT_EQ(registry.all()[0], &first);
  EXPECT_EQ(&registry.find("embed.weight"), &first);
  EXPECT_TRUE(first.decay);
  for (std::size_t i = 0; i < registry.all().size(); ++i) EXPECT_EQ(registry.all()[i]->id, i);
  EXPECT_FALSE(registry.find("norm.7").decay);
  EXPECT_EQ(registry.element_count(), 12 + 500);
}

TEST(ParameterRegistryTest, StartsAtZeroAndClearsGradients) {
  ParameterRegistry registry;
  Parameter& parameter = registry.add("w", {2, 2}, true, at::kCPU);
  EXPECT_EQ(parameter.value.abs().sum().item<float>(), 0.0f);
  EXPECT_EQ(parameter.value.scalar_type(), at::kFloat);
  EXPECT_EQ(parameter.gradient.sizes(), parameter.value.sizes());
  parameter.gradient.fill_(3);
  parameter.value.fill_(2);
  registry.zero_gradients();
  EXPECT_EQ(parameter.gradient.abs().sum().item<float>(), 0.0f);
  EXPECT_EQ(parameter.value.sum().item<float>(), 8.0f);
}

TEST(ParameterRegistryTest, StorageDecidesTheTypes) {
  ParameterRegistry registry;
  const ParameterStorage bf16{.value = at::kBFloat16, .gradient = at::kBFloat16};
  const Parameter& plain = registry.add("a", {3}, true, at::kCPU, bf16);
  EXPECT_EQ(plain.value.scalar_type(), at::kBFloat16);
  EXPECT_EQ(plain.gradient.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(plain.residual.defined());
  const Parameter& exact =
      registry.add("b", {3, 2}, true, at::kCPU, {.value = at::kBFloat16, .residual = true});
  EXPECT_EQ(exact.residual.scalar_type(), at::kChar);
  EXPECT_EQ(exact.residual.sizes(), exact.value.sizes());
  EXPECT_EQ(exact.gradient.scalar_type(), at::kFloat);
  EXPECT_THROW(registry.add("c", {1}, true, at::kCPU, {.value = at::kHalf}), std::logic_error);
  EXPECT_THROW(registry.add("c", {1}, true, at::kCPU, {.gradient = at::kByte}), std::logic_error);
  EXPECT_THROW(registry.add("c", {1}, true, at::kCPU, {.residual = true}), std::logic_error);
}

TEST(ParameterRegistryTest, RefusesATakenNameAndAnUnknownOne) {
  ParameterRegistry registry;
  registry.add("w", {1}, true, at::kCPU);
  EXPECT_THROW(registry.add("w", {2}, true, at::kCPU), std::logic_error);
  EXPECT_EQ(registry.all().size(), 1u);
  EXPECT_THROW(registry.find("v"), std::out_of_range);
}

}  // namespace
}  // namespace coat
