#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/base/cuda_device.h"
#include "worker/core/base/error.h"
#include "worker/core/layers/attention_core.h"
#include "worker/core/layers/decoder_block.h"
#include "worker/core/layers/embedding.h"
#include "worker/core/layers/head.h"
#include "worker/core/model/initial_weights.h"
#include "worker/core/model/language_model.h"
#include "worker/core/model/parameter_kind.h"

namespace coat {
namespace {

using layers::AttentionShape;
using layers::BoundedTensor;
using layers::DecoderBlockSaved;
using layers::DecoderBlockWeights;
using layers::EmbeddingSaved;
using layers::HeadResult;
using layers::HeadTargets;
using layers::HeadWeights;
using layers::LayerContext;
using layers::NextNorm;
using layers::Residual;
using layers::RmsNormSaved;

constexpr double kInitialDeviation = 0.02;

void require(bool holds, const char* field, const std::string& message, const char* fix) {
  if (!holds) throw SpecError(field, message, fix);
}

void require_positive(std::int64_t value, const char* field) {
  require(value > 0, field, std::string(field) + " is " + std::to_string(value), "write a number above 0");
}

void check_shape(const spec::ModelSpec& m) {
  require_positive(m.vocab_size, "model.vocab_size");
  require_positive(m.hidden, "model.hidden");
  require_positive(m.intermediate, "model.intermediate");
  require_positive(m.layers, "model.layers");
  require_positive(m.heads, "model.heads");
  require_positive(m.kv_heads, "model.kv_heads");
  require(m.hidden % m.heads == 0, "model.hidden",
          "hidden " + std::to_string(m.hidden) + " is no multiple of heads " + std::to_string(m.heads),
          "write a multiple of model.heads");
  require(m.hidden / m.heads % 2 == 0, "model.heads",
          "the head size hidden / heads = " + std::to_string(m.hidden / m.heads) +
              " is odd; rotary positions turn pairs",
          "choose heads so that hidden / heads is even");
  require(m.heads % m.kv_heads == 0, "model.kv_heads",
          "heads " + std::to_string(m.heads) + " is no multiple of kv_heads " + std::to_string(m.kv_heads),
          "write a divisor of model.heads");
}

void check_head_dim(const spec::ModelSpec& m, const layers::AttentionCore& core, const char* device_name) {
  const std::int64_t head_dim = m.hidden / m.heads;
  require(head_dim % core.head_dim_unit() == 0 && head_dim <= core.largest_head_dim(), "model.heads",
          "the head size hidden / heads = " + std::to_string(head_dim) + " is not one that attention on " +
              device_name + " takes: a multiple of " + std::to_string(core.head_dim_unit()) + ", at most " +
              std::to_string(core.largest_head_dim()),
          "choose model.heads so that hidden / heads is 64 or 128, or set resources.device: cpu");
}

// Tensor cores read FP8 in pieces of 16 along both dimensions (COAT.md 5.5 fact 31).
void check_alignment(const spec::ModelSpec& m, const Recipe& recipe, const kernels::Kernels& kernels) {
  if (!kernels.needs_k_major(recipe.linear_operand.format)) return;
  constexpr std::int64_t kPiece = 16;
  const auto check = [&](std::int64_t value, const char* field, const std::string& what) {
    require(value % kPiece == 0, field,
            what + " " + std::to_string(value) + " is no multiple of 16, which recipe '" + recipe.name +
                "' needs on " + kernels.device_name(),
            "write a multiple of 16, or set recipe: bf16");
  };
  check(m.hidden, "model.hidden", "hidden");
  check(m.intermediate, "model.intermediate", "intermediate");
  check(m.hidden / m.heads * m.kv_heads, "model.kv_heads", "the width of keys and values");
}

class Llama final : public LanguageModel {
 public:
  Llama(const spec::ModelSpec& model, const Recipe& recipe, const kernels::Kernels& kernels,
        at::Device device, std::uint64_t seed)
      : model_(model), recipe_(recipe), kernels_(kernels), device_(device) {
    add_parameters();
    initialise(seed);
  }

  ParameterRegistry& parameters() override { return parameters_; }
  std::int64_t saved_bytes() const override { return saved_bytes_; }

  at::Tensor add_gradients(const MicroBatch& batch, float gradient_scale, QuantizationProbe* probe) override {
    const LayerContext context = context_with(probe);
    const AttentionShape shape = shape_of(batch);
    EmbeddingSaved embedding_saved;
    std::vector<DecoderBlockSaved> saved(blocks_.size());
    RmsNormSaved norm_saved =
        layers::final_norm_saved(context, forward(context, shape, batch.tokens, embedding_saved, &saved));
    saved_bytes_ = embedding_saved.bytes() + norm_saved.bytes();
    for (const DecoderBlockSaved& block : saved) saved_bytes_ += block.bytes();

    HeadResult head = layers::head_forward_backward(context, head_, std::move(norm_saved),
                                                    {batch.targets, batch.mask, gradient_scale});
    BoundedTensor gradient = std::move(head.dh);
    while (!saved.empty()) {
      const DecoderBlockWeights& weights = blocks_[saved.size() - 1];
      gradient = layers::decoder_block_backward(context, weights, shape, std::move(saved.back()), gradient);
      saved.pop_back();
    }
    layers::embedding_backward(context, *embedding_, embedding_saved, gradient.value);
    return head.loss_sum;
  }

  double loss(const MicroBatch& batch) override {
    const LayerContext context = context_with(nullptr);
    EmbeddingSaved embedding_saved;
    const at::Tensor h = forward(context, shape_of(batch), batch.tokens, embedding_saved, nullptr);
    return layers::head_loss(context, head_, h, {batch.targets, batch.mask, 0});
  }

  at::Tensor next_token_logits(const at::Tensor& tokens) override {
    const LayerContext context = context_with(nullptr);
    EmbeddingSaved embedding_saved;
    const at::Tensor h = forward(context, shape_of(1, tokens.size(0)), tokens, embedding_saved, nullptr);
    return layers::head_logits(context, head_, h.narrow(0, h.size(0) - 1, 1)).view({-1});
  }

 private:
  LayerContext context_with(QuantizationProbe* probe) const {
    return {kernels_, kernels::Stream{cuda_device::current_stream(device_)}, device_, recipe_, probe};
  }

  AttentionShape shape_of(std::int64_t sequences, std::int64_t length) const {
    return {sequences, length, model_.heads, model_.kv_heads, model_.hidden / model_.heads};
  }
  AttentionShape shape_of(const MicroBatch& batch) const {
    const std::int64_t tokens = batch.sequences * batch.length;
    if (batch.tokens.numel() != tokens || batch.targets.numel() != tokens ||
        (batch.mask.defined() && batch.mask.numel() != tokens)) {
      throw std::logic_error(
          "a micro-batch's tokens, targets and mask have sequences * length elements each");
    }
    return shape_of(batch.sequences, batch.length);
  }

  // h after the last layer. saved == nullptr: what a layer saves is dropped with it.
  at::Tensor forward(const LayerContext& context, const AttentionShape& shape, const at::Tensor& tokens,
                     EmbeddingSaved& embedding_saved, std::vector<DecoderBlockSaved>* saved) const {
    Residual residual = layers::embedding_forward(context, *embedding_, tokens, embedding_saved);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const NextNorm next = i + 1 < blocks_.size() ? NextNorm::kStored : NextNorm::kBf16;
      DecoderBlockSaved dropped;
      residual = layers::decoder_block_forward(context, blocks_[i], shape, std::move(residual), next,
                                               saved != nullptr ? (*saved)[i] : dropped);
    }
    return residual.h;
  }

  void add_parameters() {
    const std::int64_t hidden = model_.hidden;
    embedding_ = add("model.embed_tokens.weight", {model_.vocab_size, hidden}, ParameterKind::kVocabulary);
    for (std::int64_t i = 0; i < model_.layers; ++i) {
      blocks_.push_back(add_block("model.layers." + std::to_string(i) + "."));
    }
    const auto eps = static_cast<float>(model_.norm_eps);
    head_ = {.norm = add_norm("model.norm.weight"), .head = embedding_, .norm_eps = eps};
    if (!model_.tie_embeddings)
      head_.head = add("lm_head.weight", {model_.vocab_size, hidden}, ParameterKind::kVocabulary);
  }

  DecoderBlockWeights add_block(const std::string& prefix) {
    const std::int64_t hidden = model_.hidden;
    const std::int64_t kv_width = hidden / model_.heads * model_.kv_heads;
    const auto eps = static_cast<float>(model_.norm_eps);
    DecoderBlockWeights block;
    // Braced lists are evaluated left to right: this is the registry's order.
    block.attention = {.norm = add_norm(prefix + "input_layernorm.weight"),
                       .q = add(prefix + "self_attn.q_proj.weight", {hidden, hidden}),
                       .k = add(prefix + "self_attn.k_proj.weight", {kv_width, hidden}),
                       .v = add(prefix + "self_attn.v_proj.weight", {kv_width, hidden}),
                       .o = add(prefix + "self_attn.o_proj.weight", {hidden, hidden}),
                       .norm_eps = eps,
                       .rope_theta = static_cast<float>(model_.rope_theta)};
    block.mlp = {.norm = add_norm(prefix + "post_attention_layernorm.weight"),
                 .gate = add(prefix + "mlp.gate_proj.weight", {model_.intermediate, hidden}),
                 .up = add(prefix + "mlp.up_proj.weight", {model_.intermediate, hidden}),
                 .down = add(prefix + "mlp.down_proj.weight", {hidden, model_.intermediate}),
                 .norm_eps = eps};
    return block;
  }

  Parameter* add(const std::string& name, at::IntArrayRef shape,
                 ParameterKind kind = ParameterKind::kLinear) {
    return &parameters_.add(name, shape, /*decay=*/true, device_, storage_of(recipe_, kind));
  }
  Parameter* add_norm(const std::string& name) {
    return &parameters_.add(name, {model_.hidden}, /*decay=*/false, device_);
  }

  void initialise(std::uint64_t seed) {
    // Branches that add up in the residual start smaller, so that its variance does not grow with depth.
    const double output_deviation = kInitialDeviation / std::sqrt(2.0 * static_cast<double>(model_.layers));
    for (Parameter* parameter : parameters_.all()) {
      if (parameter->value.dim() == 1) {
        parameter->value.fill_(1.0);
        continue;
      }
      const bool adds_to_residual =
          parameter->name.ends_with("o_proj.weight") || parameter->name.ends_with("down_proj.weight");
      set_value(*parameter,
                normal_values(parameter->value.sizes(),
                              adds_to_residual ? output_deviation : kInitialDeviation, seed, parameter->id));
    }
  }

  const spec::ModelSpec model_;
  const Recipe recipe_;
  const kernels::Kernels& kernels_;
  const at::Device device_;
  ParameterRegistry parameters_;
  Parameter* embedding_ = nullptr;
  std::vector<DecoderBlockWeights> blocks_;
  HeadWeights head_;
  std::int64_t saved_bytes_ = 0;
};

}  // namespace

std::unique_ptr<LanguageModel> make_llama(const spec::ModelSpec& model, const Recipe& recipe,
                                          const kernels::Kernels& kernels, at::Device device,
                                          std::uint64_t seed) {
  check_shape(model);
  check_head_dim(model, layers::attention_core(device.type()), kernels.device_name());
  check_alignment(model, recipe, kernels);
  return std::make_unique<Llama>(model, recipe, kernels, device, seed);
}

}  // namespace coat
