// workspace_bytes: the tensors of one forward_backward, held and freed on paper in the order of worker/core/layers. A change
// there that holds a tensor longer belongs here too; tests/unit/worker/core/model compares both within 2 %.
#include <algorithm>

#include "worker/core/layers/attention_core.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/head.h"
#include "worker/core/model/model_ledger.h"

namespace coat {
namespace {

// Bytes held now and at the fullest point.
class Balance {
 public:
  void hold(std::int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  void free(std::int64_t bytes) { now_ -= bytes; }
  // Held and freed at once: what an operation needs inside.
  void touch(std::int64_t bytes) { peak_ = std::max(peak_, now_ + bytes); }
  std::int64_t now() const { return now_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
};

// What is saved stays out of the balance until it is made, so the balance's peak is that of everything.
class StepMemory {
 public:
  StepMemory(const spec::ModelSpec& model, const Recipe& recipe, const BatchShape& batch)
      : model_(model),
        recipe_(recipe),
        shape_{batch.sequences, batch.length, model.heads, model.kv_heads, model.hidden / model.heads},
        tokens_(batch.sequences * batch.length),
        h_(model.hidden),
        kv_(shape_.kv_width()),
        f_(model.intermediate) {}

  std::int64_t peak() {
    balance_.hold(4 * tokens_);  // the batch's tokens
    balance_.hold(bf16(h_) + norm_input(h_));
    for (std::int64_t i = 0; i < model_.layers; ++i) forward(i + 1 == model_.layers);
    balance_.hold(4 * tokens_);  // rstd of the final norm
    head();
    for (std::int64_t i = 0; i < model_.layers; ++i) backward();
    return balance_.peak();
  }

 private:
  std::int64_t bf16(std::int64_t cols) const { return 2 * tokens_ * cols; }
  std::int64_t fp32(std::int64_t cols) const { return 4 * tokens_ * cols; }
  // Bytes beside the BF16 tensor that `format` is made from; 0 where it is that tensor.
  std::int64_t beside_bf16(const TensorFormat& format, std::int64_t cols) const {
    return format == layers::kPlainBf16 ? 0 : format.total_bytes(tokens_, cols);
  }
  std::int64_t norm_input(std::int64_t cols) const { return beside_bf16(recipe_.saved_nonlinear, cols); }
  std::int64_t weight(std::int64_t out, std::int64_t in) const { return recipe_.linear_operand.total_bytes(out, in); }

  // The twin decodes both operands of a product to FP32.
  void product(std::int64_t a_elements, std::int64_t b_elements) { balance_.touch(4 * (a_elements + b_elements)); }
  void weight_product(std::int64_t token_cols, std::int64_t out, std::int64_t in) {
    balance_.hold(weight(out, in));
    product(tokens_ * token_cols, out * in);
    balance_.free(weight(out, in));
  }

  // A BF16 tensor is made, becomes an operand, and ends unless the operand is that tensor. Returns what stays.
  std::int64_t operand_of_new(std::int64_t cols) { return converted(recipe_.linear_operand, cols, true); }
  std::int64_t gradient_of_held(std::int64_t cols) { return converted(recipe_.linear_gradient, cols, false); }
  std::int64_t converted(const TensorFormat& format, std::int64_t cols, bool make) {
    if (make) balance_.hold(bf16(cols));
    balance_.hold(beside_bf16(format, cols));
    if (format == layers::kPlainBf16) return bf16(cols);
    balance_.free(bf16(cols));
    return format.total_bytes(tokens_, cols);
  }

  void forward(bool last) {
    forward_attention();
    add_branch(norm_input(h_));
    forward_mlp();
    add_branch(last ? 0 : norm_input(h_));
  }
  // The old h ends with the sum, unless a norm saved it as it is.
  void add_branch(std::int64_t stored) {
    balance_.hold(stored);
    if (recipe_.saved_nonlinear != layers::kPlainBf16) balance_.free(bf16(h_));
  }

  void forward_attention() {
    balance_.hold(4 * tokens_);
    const std::int64_t x = operand_of_new(h_);
    for (const std::int64_t width : {h_, kv_, kv_}) {
      balance_.hold(bf16(width));
      weight_product(h_, width, h_);
    }
    if (!recipe_.save_norm_output) balance_.free(x);
    balance_.hold(bf16(h_) + fp32(shape_.heads));
    balance_.touch(core().forward_workspace_bytes(shape_));
    const std::int64_t out = beside_bf16(recipe_.linear_operand, h_);
    balance_.hold(out + bf16(h_));
    weight_product(h_, h_, h_);
    balance_.free(out);
  }

  void forward_mlp() {
    balance_.hold(4 * tokens_);
    const std::int64_t x = operand_of_new(h_);
    for (int i = 0; i < 2; ++i) {
      balance_.hold(recipe_.saved_nonlinear.total_bytes(tokens_, f_));
      weight_product(h_, f_, h_);
    }
    if (!recipe_.save_norm_output) balance_.free(x);
    if (recipe_.save_activation) balance_.hold(recipe_.saved_nonlinear.total_bytes(tokens_, f_));
    const std::int64_t activated = operand_of_new(f_);
    balance_.hold(bf16(h_));
    weight_product(f_, h_, f_);
    if (!recipe_.save_product) balance_.free(activated);
  }

  void head() {
    const std::int64_t vocab = model_.vocab_size;
    const std::int64_t chunk = layers::head_chunk_tokens(vocab, tokens_);
    const std::int64_t buffers = 2 * vocab * h_ + 6 * chunk * vocab;
    balance_.hold(bf16(h_) + buffers);
    product(chunk * h_, vocab * h_);
    product(chunk * vocab, chunk * h_);
    product(chunk * vocab, vocab * h_);
    balance_.free(buffers);
    balance_.hold(bf16(h_));                            // the gradient of h
    balance_.free(2 * bf16(h_) + 4 * tokens_);          // y, h, rstd
  }

  // Ends with the balance that it began with, less what the layer had saved.
  void backward() {
    backward_mlp();
    balance_.free(saved_by_mlp());
    backward_attention();
    balance_.free(saved_bytes_of_layer(model_, recipe_, tokens_) - saved_by_mlp());
  }
  std::int64_t saved_by_mlp() const {
    std::int64_t bytes = recipe_.saved_nonlinear.total_bytes(tokens_, h_) + 4 * tokens_ +
                         2 * recipe_.saved_nonlinear.total_bytes(tokens_, f_);
    if (recipe_.save_norm_output) bytes += recipe_.linear_operand.total_bytes(tokens_, h_);
    if (recipe_.save_activation) bytes += recipe_.saved_nonlinear.total_bytes(tokens_, f_);
    if (recipe_.save_product) bytes += recipe_.linear_operand.total_bytes(tokens_, f_);
    return bytes;
  }

  void backward_mlp() {
    const std::int64_t dy = beside_bf16(recipe_.linear_gradient, h_);
    balance_.hold(dy);
    const std::int64_t activated = recipe_.save_product ? 0 : operand_of_new(f_);
    product(tokens_ * h_, tokens_ * f_);
    balance_.free(activated);
    balance_.hold(bf16(f_));  // d product
    weight_product(h_, h_, f_);
    balance_.free(dy);
    balance_.hold(2 * bf16(f_));
    balance_.free(bf16(f_));
    const std::int64_t gate = gradient_of_held(f_);
    const std::int64_t up = gradient_of_held(f_);
    const std::int64_t x = recipe_.save_norm_output ? 0 : operand_of_new(h_);
    balance_.hold(fp32(h_));
    for (const std::int64_t operand : {gate, up}) {
      product(tokens_ * f_, tokens_ * h_);
      weight_product(f_, f_, h_);
      balance_.free(operand);
    }
    balance_.free(x);
    norm_backward();
  }
  // The FP32 sum is rounded, and the norm's own gradient joins the residual's.
  void norm_backward() {
    balance_.hold(bf16(h_));
    balance_.free(fp32(h_));
    balance_.hold(bf16(h_));
    balance_.free(2 * bf16(h_));
  }

  void backward_attention() {
    balance_.hold(bf16(h_));  // d out
    const std::int64_t dy = beside_bf16(recipe_.linear_gradient, h_);
    const std::int64_t out = beside_bf16(recipe_.linear_operand, h_);
    balance_.hold(dy + out);
    product(tokens_ * h_, tokens_ * h_);
    balance_.free(out);
    weight_product(h_, h_, h_);
    balance_.free(dy);
    balance_.hold(bf16(h_) + 2 * bf16(kv_));
    balance_.touch(core().backward_workspace_bytes(shape_));
    balance_.free(bf16(h_));
    const std::int64_t x = recipe_.save_norm_output ? 0 : operand_of_new(h_);
    balance_.hold(fp32(h_));
    for (const std::int64_t width : {h_, kv_, kv_}) {
      const std::int64_t gradient = gradient_of_held(width);
      product(tokens_ * width, tokens_ * h_);
      weight_product(width, width, h_);
      balance_.free(gradient);
    }
    balance_.free(x);
    norm_backward();
  }

  const layers::AttentionCore& core() const { return layers::cpu_attention_core(); }

  const spec::ModelSpec& model_;
  const Recipe& recipe_;
  const layers::AttentionShape shape_;
  const std::int64_t tokens_, h_, kv_, f_;
  Balance balance_;
};

}  // namespace

std::int64_t workspace_bytes(const spec::ModelSpec& model, const Recipe& recipe, const BatchShape& batch) {
  const std::int64_t peak = StepMemory(model, recipe, batch).peak();
  return peak - saved_bytes_of_model(model, recipe, batch.sequences * batch.length);
}

}  // namespace coat
