#include "tests/support/oracle/autograd_llama.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "tests/support/oracle/fake_quantize.h"

// Shapes: T tokens, B sequences, S length, N heads, K key-value heads, D head dimension.
namespace coat::oracle {
namespace {

constexpr TensorFormat kBf16{Format::kBf16, Scaling::kNone};

// The recipe's roundings, or none.
struct Rounder {
  const Recipe* recipe;

  // A BF16 tensor whose gradient is BF16 too.
  at::Tensor bf16(const at::Tensor& x) const {
    return recipe == nullptr ? x : round_through(x, kBf16, kBf16);
  }
  at::Tensor operand(const at::Tensor& x) const {
    return recipe == nullptr ? x : round_through(x, recipe->linear_operand, {Format::kFp32, Scaling::kNone});
  }
  // An operand as one of the products that read it: its gradient is rounded before it joins the others',
  // where the recipe adds them in BF16.
  at::Tensor input(const at::Tensor& x) const {
    return recipe == nullptr ? x : round_through(x, plain(Format::kFp32), plain(recipe->input_gradient_sum));
  }
  // A weight as its product reads it; the product of its gradient as the recipe rounds it.
  at::Tensor weight(const at::Tensor& w) const {
    if (recipe == nullptr) return w;
    const at::Tensor values = round_through(w, plain(recipe->weight_values), {Format::kFp32});
    return round_through(values, recipe->linear_operand, plain(recipe->weight_gradient_product));
  }
  at::Tensor norm_weight(const at::Tensor& w) const {
    return recipe == nullptr ? w : round_through(w, plain(recipe->weight_values), {Format::kFp32});
  }
  // silu(gate) as its product with `up` reads it.
  at::Tensor activation(const at::Tensor& x) const {
    if (recipe == nullptr) return x;
    const TensorFormat& format =
        recipe->product_reads_saved_activation ? recipe->saved_nonlinear : plain(Format::kFp32);
    return round_through(x, format, plain(recipe->round_activation_gradient ? Format::kBf16 : Format::kFp32));
  }
  at::Tensor norm_input(const at::Tensor& h) const {
    return recipe == nullptr ? h : round_through(h, recipe->saved_nonlinear, kBf16);
  }
  // q, k, v and the attention's output: BF16 values, kept in the recipe's format.
  at::Tensor attention(const at::Tensor& x) const {
    return recipe == nullptr
               ? x
               : round_through(bf16(x), recipe->saved_attention, {Format::kFp32, Scaling::kNone});
  }
  // The result of a product: stored in BF16, its gradient in BF16 and then as the products of backward read
  // it.
  at::Tensor product(const at::Tensor& y) const { return stored_product(y, kBf16); }
  at::Tensor nonlinear_product(const at::Tensor& y) const {
    return recipe == nullptr ? y : stored_product(y, recipe->saved_nonlinear);
  }

 private:
  static TensorFormat plain(Format format) { return {format, Scaling::kNone}; }
  at::Tensor stored_product(const at::Tensor& y, const TensorFormat& format) const {
    if (recipe == nullptr) return y;
    // Backward runs outside in: the gradient is rounded to BF16 first.
    const TensorFormat exact{Format::kFp32, Scaling::kNone};
    return round_through(round_through(y, format, recipe->linear_gradient), exact, kBf16);
  }
};

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

// cos and sin of the angles, [T, 1, D/2]; the position of a row is row % length.
struct Rotary {
  at::Tensor cosine, sine;
};

Rotary rotary_of(const at::Tensor& h, const spec::ModelSpec& model, std::int64_t length) {
  const std::int64_t half = model.hidden / model.heads / 2;
  const auto options = h.options().requires_grad(false);
  const at::Tensor frequency =
      at::pow(model.rope_theta, at::arange(half, options) * (-1.0 / static_cast<double>(half)));
  const at::Tensor position = at::arange(length, options).repeat({h.size(0) / length});
  const at::Tensor angle = (position.unsqueeze(1) * frequency.unsqueeze(0)).unsqueeze(1);
  return {angle.cos(), angle.sin()};
}

at::Tensor rotated(const at::Tensor& x, std::int64_t heads, const Rotary& rotary) {
  const auto halves = x.view({x.size(0), heads, x.size(1) / heads}).chunk(2, -1);
  const at::Tensor low = halves[0] * rotary.cosine - halves[1] * rotary.sine;
  const at::Tensor high = halves[1] * rotary.cosine + halves[0] * rotary.sine;
  return at::cat({low, high}, -1).view(x.sizes());
}

struct HeadShape {
  std::int64_t sequences, length, heads, kv_heads;
};

// [T, K*D] -> [B, N, S, D]
at::Tensor by_head(const at::Tensor& x, const HeadShape& shape, std::int64_t heads) {
  const at::Tensor split = x.view({shape.sequences, shape.length, heads, x.size(1) / heads}).transpose(1, 2);
  return heads == shape.heads ? split : split.repeat_interleave(shape.heads / heads, 1);
}

at::Tensor written_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t length = q.size(2);
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), v);
}

at::Tensor attention(AttentionKind kind, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const HeadShape& shape) {
  const at::Tensor qh = by_head(q, shape, shape.heads);
  const at::Tensor kh = by_head(k, shape, shape.kv_heads);
  const at::Tensor vh = by_head(v, shape, shape.kv_heads);
  const at::Tensor out = kind == AttentionKind::kFused
                             ? at::scaled_dot_product_attention(qh, kh, vh, {}, 0.0, /*is_causal=*/true)
                             : written_attention(qh, kh, vh);
  return out.transpose(1, 2).reshape(q.sizes());
}

const at::Tensor& get(const Weights& weights, const std::string& name) { return weights.at(name); }

at::Tensor attention_branch(const Arithmetic& arithmetic, const spec::ModelSpec& model,
                            const Weights& weights, const std::string& prefix, const at::Tensor& h,
                            const HeadShape& shape, const Rotary& rotary) {
  const Rounder round{arithmetic.emulated};
  const at::Tensor x = round.operand(round.bf16(
      rms_norm(round.norm_input(h), round.norm_weight(get(weights, prefix + "input_layernorm.weight")),
               model.norm_eps)));
  const auto project = [&](const at::Tensor& input, const char* name) {
    return round.product(
        at::linear(round.input(input), round.weight(get(weights, prefix + "self_attn." + name + ".weight"))));
  };
  const at::Tensor q = round.attention(rotated(project(x, "q_proj"), shape.heads, rotary));
  const at::Tensor k = round.attention(rotated(project(x, "k_proj"), shape.kv_heads, rotary));
  const at::Tensor out =
      round.attention(attention(arithmetic.attention, q, k, round.attention(project(x, "v_proj")), shape));
  return project(round.operand(out), "o_proj");
}

at::Tensor mlp_branch(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                      const std::string& prefix, const at::Tensor& h) {
  const Rounder round{arithmetic.emulated};
  const at::Tensor x = round.operand(round.bf16(
      rms_norm(round.norm_input(h),
               round.norm_weight(get(weights, prefix + "post_attention_layernorm.weight")), model.norm_eps)));
  const auto product = [&](const at::Tensor& input, const char* name) {
    return at::linear(round.input(input), round.weight(get(weights, prefix + "mlp." + name + ".weight")));
  };
  const at::Tensor gate = round.nonlinear_product(product(x, "gate_proj"));
  const at::Tensor up = round.nonlinear_product(product(x, "up_proj"));
  const at::Tensor activated = round.operand(round.bf16(round.activation(at::silu(gate)) * up));
  return round.product(product(activated, "down_proj"));
}

at::Tensor block(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                 const std::string& prefix, const at::Tensor& h, const HeadShape& shape,
                 const Rotary& rotary) {
  const Rounder round{arithmetic.emulated};
  const at::Tensor z = round.bf16(h + attention_branch(arithmetic, model, weights, prefix, h, shape, rotary));
  return round.bf16(z + mlp_branch(arithmetic, model, weights, prefix, z));
}

}  // namespace

Weights weights_of(const ParameterRegistry& parameters, at::ScalarType dtype) {
  Weights weights;
  for (const Parameter* parameter : parameters.all()) {
    weights[parameter->name] = parameter->value.detach().to(dtype).clone().set_requires_grad(true);
  }
  return weights;
}

at::Tensor decoder_block(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                         const std::string& prefix, const at::Tensor& h, std::int64_t sequences,
                         std::int64_t length) {
  const HeadShape shape{sequences, length, model.heads, model.kv_heads};
  return block(arithmetic, model, weights, prefix, h, shape, rotary_of(h, model, length));
}

at::Tensor logits(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                  const at::Tensor& tokens, std::int64_t sequences, std::int64_t length) {
  const Rounder round{arithmetic.emulated};
  const at::Tensor& embedding = get(weights, "model.embed_tokens.weight");
  at::Tensor h = round.bf16(at::embedding(embedding, tokens));
  const HeadShape shape{sequences, length, model.heads, model.kv_heads};
  const Rotary rotary = rotary_of(h, model, length);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    h = block(arithmetic, model, weights, "model.layers." + std::to_string(i) + ".", h, shape, rotary);
  }
  const at::Tensor y =
      round.bf16(rms_norm(h, round.norm_weight(get(weights, "model.norm.weight")), model.norm_eps));
  const at::Tensor& head = model.tie_embeddings ? embedding : get(weights, "lm_head.weight");
  const at::Tensor rounded =
      arithmetic.emulated == nullptr ? head : round_through(head, kBf16, {Format::kFp32});
  const at::Tensor result = at::linear(y, rounded);
  return arithmetic.emulated == nullptr ? result : round_through(result, {Format::kFp32}, kBf16);
}

at::Tensor loss_sum(const Arithmetic& arithmetic, const spec::ModelSpec& model, const Weights& weights,
                    const MicroBatch& batch) {
  const at::Tensor scores = logits(arithmetic, model, weights, batch.tokens, batch.sequences, batch.length);
  const at::Tensor losses =
      at::cross_entropy_loss(scores, batch.targets.to(at::kLong), {}, at::Reduction::None);
  return batch.mask.defined() ? (losses * batch.mask.to(losses.scalar_type())).sum() : losses.sum();
}

}  // namespace coat::oracle
