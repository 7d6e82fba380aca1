#include "tests/unit/worker/core/layers/layer_fixture.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tests/support/oracle/compare.h"
#include "worker/core/kernels/cpu/cpu_kernels.h"

namespace coat::layers {

LayerContext cpu_context(const Recipe& recipe, QuantizationProbe* probe) {
  return {kernels::cpu_kernels(), {}, at::kCPU, recipe, probe};
}

at::Tensor random_bf16(at::IntArrayRef shape, double deviation, std::uint64_t seed) {
  return oracle::random_normal(shape, deviation, seed).to(at::kBFloat16);
}

BlockFixture::BlockFixture(const BlockShape& shape) {
  const std::int64_t hidden = shape.attention.width();
  const std::int64_t kv = shape.attention.kv_width();
  const auto add = [&](const char* name, at::IntArrayRef sizes) {
    Parameter& parameter =
        parameters.add(std::string("model.layers.0.") + name + ".weight", sizes, true, at::kCPU);
    const bool is_norm = sizes.size() == 1;
    const double deviation = is_norm ? 0.2 : 1 / std::sqrt(static_cast<double>(sizes.back()));
    parameter.value.copy_(oracle::random_normal(sizes, deviation, parameter.id + 100));
    if (is_norm) parameter.value.add_(1);
    return &parameter;
  };
  weights.attention = {.norm = add("input_layernorm", {hidden}),
                       .q = add("self_attn.q_proj", {hidden, hidden}),
                       .k = add("self_attn.k_proj", {kv, hidden}),
                       .v = add("self_attn.v_proj", {kv, hidden}),
                       .o = add("self_attn.o_proj", {hidden, hidden}),
                       .norm_eps = 1e-5f,
                       .rope_theta = 10000.0f};
  weights.mlp = {.norm = add("post_attention_layernorm", {hidden}),
                 .gate = add("mlp.gate_proj", {shape.intermediate, hidden}),
                 .up = add("mlp.up_proj", {shape.intermediate, hidden}),
                 .down = add("mlp.down_proj", {hidden, shape.intermediate}),
                 .norm_eps = 1e-5f};
}

}  // namespace coat::layers
