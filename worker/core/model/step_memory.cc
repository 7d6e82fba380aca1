// workspace_bytes: the tensors of one forward_backward, held and freed on paper in the order of
// worker/core/layers. A change there that holds a tensor longer belongs here too;
// tests/unit/worker/core/model compares both.
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
  StepMemory(const spec::ModelSpec& model, const Recipe& recipe, const BatchShape& batch,
             c10::DeviceType device)
      : model_(model),
        recipe_(recipe),
        shape_{batch.sequences, batch.length, model.heads, model.kv_heads, model.hidden / model.heads},
        tokens_(batch.sequences * batch.length),
        h_(model.hidden),
        kv_(shape_.kv_width()),
        f_(model.intermediate),
        on_cpu_(device == c10::DeviceType::CPU),
        core_(layers::attention_core(device)) {}

  std::int64_t peak() {
    balance_.hold(kernel_scratch());
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
  bool bf16_weights() const { return recipe_.weights != WeightFormat::kFp32; }
  // A weight as an operand of a product; 0 where that is the stored weight itself.
  std::int64_t weight(std::int64_t out, std::int64_t in) const {
    if (bf16_weights() && recipe_.linear_operand == layers::kPlainBf16) return 0;
    return recipe_.linear_operand.total_bytes(out, in);
  }

  // The twin decodes both operands of a product to FP32; tensor cores read them as they are.
  void product(std::int64_t a_elements, std::int64_t b_elements) {
    if (on_cpu_) balance_.touch(4 * (a_elements + b_elements));
  }
  // How often an operand's codes exist in backward: FP8 tensor cores read the other product's transposed.
  std::int64_t copies(const TensorFormat& format) const {
    return !on_cpu_ && bytes_of(format.format) == 1 ? 2 : 1;
  }
  // The kernels' own memory on a GPU (kernels/cuda/device_state.h), which lives as long as the program.
  std::int64_t kernel_scratch() const {
    if (on_cpu_) return 0;
    constexpr std::int64_t kTables = 256 << 10;
    constexpr std::int64_t kProducts = 32 << 20, kStaging = 32 << 20;
    const std::int64_t slabs = (tokens_ + 63) / 64 * h_ * 4;
    const std::int64_t squares = (std::max(model_.vocab_size, f_) * h_ + 4095) / 4096 * 8;
    const bool staged = recipe_.saved_nonlinear.scaling == Scaling::kGroup;
    std::int64_t widest = std::max(f_, h_) * tokens_ * 4;
    if (recipe_.weight_gradient_product != Format::kFp32) widest = std::max(widest, f_ * h_ * 4);
    return kTables + kProducts + std::max(slabs, squares) + (staged ? std::min(kStaging, widest) : 0);
  }
  void weight_product(std::int64_t token_cols, std::int64_t out, std::int64_t in, bool backward = false) {
    const bool rounded = recipe_.weight_values == Format::kBf16 && !bf16_weights() &&
                         recipe_.linear_operand != layers::kPlainBf16;
    const std::int64_t operand = weight(out, in) * (backward ? copies(recipe_.linear_operand) : 1);
    balance_.hold(operand + (rounded ? 2 * out * in : 0));
    if (rounded) balance_.free(2 * out * in);
    product(tokens_ * token_cols, out * in);
    balance_.free(operand);
  }

  // Made again for a weight gradient: as codes alone where they have one scale, else by way of BF16.
  std::int64_t recomputed(std::int64_t cols) {
    if (recipe_.linear_operand.scaling != Scaling::kTensor) return operand_of_new(cols, true);
    const std::int64_t bytes = recipe_.linear_operand.total_bytes(tokens_, cols);
    balance_.hold(bytes);
    return bytes;
  }
  // Of what a norm or an activation hands to its products one copy stays where backward reads it.
  void end_of_operand(std::int64_t bytes, std::int64_t cols, bool saved) {
    balance_.free(saved ? bytes - recipe_.linear_operand.total_bytes(tokens_, cols) : bytes);
  }

  // A BF16 tensor is made, becomes an operand, and ends unless the operand is that tensor. Returns what
  // stays.
  std::int64_t operand_of_new(std::int64_t cols, bool backward = false) {
    return converted(recipe_.linear_operand, cols, true, backward);
  }
  std::int64_t gradient_of_held(std::int64_t cols) {
    return converted(recipe_.linear_gradient, cols, false, true);
  }
  std::int64_t converted(const TensorFormat& format, std::int64_t cols, bool make, bool backward) {
    if (make) balance_.hold(bf16(cols));
    if (format == layers::kPlainBf16) return bf16(cols);
    const std::int64_t bytes = format.total_bytes(tokens_, cols) * (backward ? copies(format) : 1);
    balance_.hold(bytes);
    balance_.free(bf16(cols));
    return bytes;
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
    const std::int64_t x = operand_of_new(h_, recipe_.save_norm_output);
    for (const std::int64_t width : {h_, kv_, kv_}) {
      balance_.hold(bf16(width));
      weight_product(h_, width, h_);
      balance_.hold(beside_bf16(recipe_.saved_attention, width));
    }
    if (recipe_.saved_attention != layers::kPlainBf16) balance_.free(bf16(h_) + 2 * bf16(kv_));
    end_of_operand(x, h_, recipe_.save_norm_output);
    balance_.hold(recipe_.saved_attention.total_bytes(tokens_, h_) + fp32(shape_.heads));
    balance_.touch(core_.forward_workspace_bytes(shape_));
    const std::int64_t out = hold_output_operand();
    balance_.hold(bf16(h_));
    weight_product(h_, h_, h_);
    balance_.free(out);
  }
  // The saved attention output as an operand, by way of BF16. Returns what stays.
  std::int64_t hold_output_operand(bool backward = false) {
    if (recipe_.saved_attention != layers::kPlainBf16) return operand_of_new(h_, backward);
    const std::int64_t out =
        beside_bf16(recipe_.linear_operand, h_) * (backward ? copies(recipe_.linear_operand) : 1);
    balance_.hold(out);
    return out;
  }

  void forward_mlp() {
    balance_.hold(4 * tokens_);
    const std::int64_t x = operand_of_new(h_, recipe_.save_norm_output);
    for (int i = 0; i < 2; ++i) {
      balance_.hold(recipe_.saved_nonlinear.total_bytes(tokens_, f_));
      weight_product(h_, f_, h_);
    }
    end_of_operand(x, h_, recipe_.save_norm_output);
    if (recipe_.save_activation) balance_.hold(recipe_.saved_nonlinear.total_bytes(tokens_, f_));
    const std::int64_t activated = operand_of_new(f_, recipe_.save_product);
    balance_.hold(bf16(h_));
    weight_product(f_, h_, f_);
    end_of_operand(activated, f_, recipe_.save_product);
  }

  void head() {
    const std::int64_t vocab = model_.vocab_size;
    const std::int64_t chunk = layers::head_chunk_tokens(vocab, tokens_);
    const std::int64_t buffers = (bf16_weights() ? 0 : 2 * vocab * h_) + 6 * chunk * vocab;
    balance_.hold(bf16(h_) + buffers);
    product(chunk * h_, vocab * h_);
    product(chunk * vocab, chunk * h_);
    product(chunk * vocab, vocab * h_);
    balance_.free(buffers);
    balance_.hold(bf16(h_));                    // the gradient of h
    balance_.free(2 * bf16(h_) + 4 * tokens_);  // y, h, rstd
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
    const std::int64_t dy = beside_bf16(recipe_.linear_gradient, h_) * copies(recipe_.linear_gradient);
    balance_.hold(dy);
    const std::int64_t activated = recipe_.save_product ? 0 : recomputed(f_);
    product(tokens_ * h_, tokens_ * f_);
    balance_.free(activated);
    balance_.hold(bf16(f_));  // d product
    weight_product(h_, h_, f_, true);
    balance_.free(dy);
    balance_.hold(2 * bf16(f_));
    balance_.free(bf16(f_));
    const std::int64_t gate = gradient_of_held(f_);
    const std::int64_t up = gradient_of_held(f_);
    const std::int64_t x = recipe_.save_norm_output ? 0 : recomputed(h_);
    balance_.hold(gradient_sum());
    for (const std::int64_t operand : {gate, up}) {
      product(tokens_ * f_, tokens_ * h_);
      weight_product(f_, f_, h_, true);
      balance_.free(operand);
    }
    balance_.free(x);
    norm_backward();
  }
  std::int64_t gradient_sum() const {
    return recipe_.input_gradient_sum == Format::kBf16 ? bf16(h_) : fp32(h_);
  }
  // The sum is rounded where it is FP32, and the norm's own gradient joins the residual's.
  void norm_backward() {
    if (recipe_.input_gradient_sum == Format::kFp32) {
      balance_.hold(bf16(h_));
      balance_.free(fp32(h_));
    }
    balance_.hold(bf16(h_));
    balance_.free(2 * bf16(h_));
  }

  void backward_attention() {
    balance_.hold(bf16(h_));  // d out
    const std::int64_t dy = beside_bf16(recipe_.linear_gradient, h_) * copies(recipe_.linear_gradient);
    balance_.hold(dy);
    const std::int64_t out = hold_output_operand(true);
    product(tokens_ * h_, tokens_ * h_);
    balance_.free(out);
    weight_product(h_, h_, h_, true);
    balance_.free(dy);
    balance_.hold(bf16(h_) + 2 * bf16(kv_));
    balance_.touch(core_.backward_workspace_bytes(shape_));
    balance_.free(bf16(h_));
    const std::int64_t x = recipe_.save_norm_output ? 0 : recomputed(h_);
    balance_.hold(gradient_sum());
    for (const std::int64_t width : {h_, kv_, kv_}) {
      const std::int64_t gradient = gradient_of_held(width);
      product(tokens_ * width, tokens_ * h_);
      weight_product(width, width, h_, true);
      balance_.free(gradient);
    }
    balance_.free(x);
    norm_backward();
  }

  const spec::ModelSpec& model_;
  const Recipe& recipe_;
  const layers::AttentionShape shape_;
  const std::int64_t tokens_, h_, kv_, f_;
  const bool on_cpu_;
  const layers::AttentionCore& core_;
  Balance balance_;
};

}  // namespace

std::int64_t workspace_bytes(const spec::ModelSpec& model, const Recipe& recipe, const BatchShape& batch,
                             c10::DeviceType device) {
  const std::int64_t peak = StepMemory(model, recipe, batch, device).peak();
  return peak - saved_bytes_of_model(model, recipe, batch.sequences * batch.length);
}

}  // namespace coat
