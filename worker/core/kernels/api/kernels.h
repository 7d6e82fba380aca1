// Every device operation of the training core, as one interface: pointers, shape structs, a stream.
// kernels/cpu holds the plain twin of each, kernels/cuda the fast one; both must give the same bits wherever
// the operation allows.
//
// Contracts common to all
// - Matrices are row-major and contiguous. "BF16 matrix" means TensorFormat{kBf16, kNone}.
// - Arithmetic inside is FP32 from decoded inputs unless a method says otherwise; sums over rows or columns
//   are done in an order that depends on the shape alone, never on the number of threads.
// - `amax` pointers (FP32, one value): kernels that take `amax_out` store max |x| over their BF16-rounded
//   output, so that the next quantize needs no pass of its own (Group Scaling, COAT.md 0.3). nullptr: not
//   wanted. The maximum ignores nothing: NaN or Inf in the data gives a NaN or Inf amax.
// - Every pointer is memory of the kernels' own device, loss_sum and sum_of_squares' out too; only ErrorSums
//   and AdamWErrors lie on the host (a call that fills them waits for the stream).
// - Nothing allocates on the caller's behalf except scratch, which a kernel set keeps for its next call.
//   Empty matrices (rows or cols 0) are no-ops.
// - A wrong combination of formats is a std::logic_error. Thread-safety: one stream, one caller at a time.
#pragma once

#include <cstdint>

#include "worker/core/kernels/api/adamw_args.h"
#include "worker/core/kernels/api/error_sums.h"
#include "worker/core/kernels/api/stream.h"
#include "worker/core/quant/matrix.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels {

struct QuantizeArgs {
  ConstMatrix in;         // FP32 or BF16, no scaling
  Matrix out;             // any format; scales by quant/scale.h
  Matrix out_transposed;  // optional (data == nullptr: none): [cols, rows] of the same codes and scales; not
                          // with kRow and kGroup, whose scales belong to rows
  const float* amax = nullptr;  // of `in`, where the producer knew it; nullptr: found here. Only for kTensor
  Rounding rounding = Rounding::kNearestEven;  // kStochastic: FP8 alone
  PhiloxStream random{};  // of kStochastic; element (row, col) takes number row * cols + col
};

struct RmsNormForwardArgs {
  ConstMatrix x;        // [tokens, hidden], any format: the norm reads what is saved (COAT.md 5.5 fact 27)
  const float* weight;  // [hidden]
  float eps;
  Matrix y;                   // BF16 [tokens, hidden]: x * rstd * weight
  float* rstd;                // [tokens]
  float* amax_out = nullptr;  // of y
};

// An FP8 operand of backward with one scale, made again from what was saved: `rows`, the same codes
// `transposed`, or both; data == nullptr: not wanted.
struct RecomputedOutput {
  Matrix rows;        // [rows, cols]
  Matrix transposed;  // [cols, rows]
};

// quantize(rms_norm_forward(x)), bit for bit, without a BF16 copy and without finding the maximum again.
struct RmsNormRecomputeArgs {
  ConstMatrix x;
  const float* weight;
  const float* rstd;  // as forward found it
  const float* amax;  // of the forward output, as forward found it
  RecomputedOutput output;
};

struct RmsNormBackwardArgs {
  ConstMatrix x;
  const float* weight;
  const float* rstd;
  ConstMatrix dy;  // BF16
  Matrix dx;       // BF16: (w*dy - xhat * mean(xhat*w*dy)) * rstd
  float* dweight;  // [hidden], accumulated in FP32 (fact 29)
};

// LayerNorm without parameters (OLMo).
struct LayerNormForwardArgs {
  ConstMatrix x;  // [tokens, hidden], any format
  float eps;
  Matrix y;                   // BF16: (x - mean) * rstd
  float* mean;                // [tokens]
  float* rstd;                // [tokens]: 1 / sqrt(mean of (x - mean)^2 + eps)
  float* amax_out = nullptr;  // of y
};

struct LayerNormBackwardArgs {
  ConstMatrix x;
  const float* mean;
  const float* rstd;
  ConstMatrix dy;  // BF16
  Matrix dx;       // BF16: (dy - mean(dy) - xhat * mean(dy * xhat)) * rstd
};

// GELU with the exact normal distribution (erf), as the reference has it: x P(X < x).
struct GeluForwardArgs {
  ConstMatrix x;  // any format
  Matrix y;       // BF16
  float* amax_out = nullptr;
};

struct GeluBackwardArgs {
  ConstMatrix x;
  ConstMatrix dy;  // BF16
  Matrix dx;       // BF16: dy * (P(X < x) + x density(x))
  float* amax_out = nullptr;
};

struct SwigluForwardArgs {
  ConstMatrix gate;  // [tokens, intermediate], any format
  ConstMatrix up;
  Matrix product;             // BF16: silu(gate) * up, FP32 inside
  Matrix activation;          // optional (data == nullptr: none): silu(gate), any format but kRow and kBlock
  float* amax_out = nullptr;  // of product
  bool product_reads_activation = false;  // product = activation * up, from what `activation` stores
};

// quantize(swiglu_forward(gate, up)), bit for bit, as RmsNormRecomputeArgs.
struct SwigluRecomputeArgs {
  ConstMatrix gate;
  ConstMatrix up;
  const float* amax;
  RecomputedOutput output;
};

struct SwigluBackwardArgs {
  ConstMatrix gate;
  ConstMatrix up;
  ConstMatrix dproduct;  // BF16
  ConstMatrix
      activation;  // optional (data == nullptr: recomputed in FP32): silu(gate) as it was saved; dup reads it
  Matrix dgate;    // BF16: dproduct * up * (sig + x sig (1 - sig)), x = gate
  Matrix dup;      // BF16: dproduct * silu(gate)
  float* dgate_amax_out = nullptr;
  float* dup_amax_out = nullptr;
  bool round_dsilu = false;  // dproduct * up is rounded to BF16 before it is used (COAT.md 1.5); else FP32
};

// Rotary positions on [tokens, heads * head_dim], in place; pairs are (i, i + head_dim/2) as in Llama. The
// position of row r is r % sequence_length.
struct RopeArgs {
  Matrix x;  // BF16
  std::int64_t heads;
  std::int64_t head_dim;  // even
  std::int64_t sequence_length;
  float theta;
  bool inverse = false;       // backward: rotate by minus the angle
  float* amax_out = nullptr;  // of x, rotated
};

struct ResidualAddArgs {
  ConstMatrix a;     // BF16
  ConstMatrix b;     // BF16
  Matrix sum;        // BF16: round(a + b); may be a or b
  Matrix quantized;  // optional (data == nullptr: none): the same sum, from its FP32 value, in a format whose
                     // scales_in_one_pass
  float* amax_out = nullptr;
};

struct EmbeddingForwardArgs {
  const std::int32_t* tokens;  // [rows], each in [0, vocab)
  ConstMatrix weight;          // [vocab, hidden], FP32 or BF16
  Matrix out;                  // BF16 [rows, hidden]
  Matrix quantized;            // optional, as in ResidualAddArgs
};

struct EmbeddingBackwardArgs {
  const std::int32_t* tokens;
  ConstMatrix dy;  // BF16 [rows, hidden]
  std::int64_t vocab;
  float* dweight;  // [vocab, hidden], accumulated in FP32, rows in order
};

// Softmax cross-entropy of one chunk of tokens, forward and backward at once; the logits are overwritten by
// their gradient.
struct CrossEntropyArgs {
  Matrix logits;  // FP32 [rows, vocab], in: logits, out: (softmax - onehot) * gradient_scale * mask
  const std::int32_t* targets;  // [rows]
  const float* mask;            // [rows], 1 or 0; nullptr: all 1
  float gradient_scale;         // 1 / (tokens of the whole optimizer step that count)
  double* loss_sum;             // one value, accumulated: sum of mask * -log p(target)
};

enum class Layout : std::uint8_t {
  kKMajor,   // [M, K] for a, [N, K] for b: the summed dimension is contiguous
  kMnMajor,  // [K, M] for a, [K, N] for b
};

// out[M, N] (+)= a · bᵀ over K. FP32 accumulation; scales are applied once at the end (kTensor) or on
// decode.
struct GemmArgs {
  ConstMatrix a;
  ConstMatrix b;
  Layout a_layout = Layout::kKMajor;
  Layout b_layout = Layout::kKMajor;
  Matrix out;  // FP32, BF16, or an FP8 kGroup format quantized from the FP32 accumulator (fact 26)
  bool accumulate = false;     // out += ...; FP32 and BF16 outputs only
  bool round_product = false;  // to BF16, before it is added or stored; FP32 and BF16 outputs only
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual const char* device_name() const = 0;  // "cpu", "cuda"

  // Whether a product of this operand format needs Layout::kKMajor on both sides (FP8 tensor cores do).
  virtual bool needs_k_major(Format) const { return false; }

  // A device without its own version of an operation inherits the default, which throws UnsupportedError
  // naming it.
  virtual void quantize(const QuantizeArgs&, Stream) const { unsupported("quantize"); }
  virtual void dequantize(ConstMatrix in, Matrix out, Stream) const;  // out: FP32 or BF16
  virtual void amax(ConstMatrix in, float* out, Stream) const;
  virtual void rms_norm_forward(const RmsNormForwardArgs&, Stream) const { unsupported("rms_norm_forward"); }
  virtual void rms_norm_backward(const RmsNormBackwardArgs&, Stream) const {
    unsupported("rms_norm_backward");
  }
  virtual void rms_norm_recompute(const RmsNormRecomputeArgs&, Stream) const {
    unsupported("rms_norm_recompute");
  }
  virtual void layer_norm_forward(const LayerNormForwardArgs&, Stream) const {
    unsupported("layer_norm_forward");
  }
  virtual void layer_norm_backward(const LayerNormBackwardArgs&, Stream) const {
    unsupported("layer_norm_backward");
  }
  virtual void gelu_forward(const GeluForwardArgs&, Stream) const { unsupported("gelu_forward"); }
  virtual void gelu_backward(const GeluBackwardArgs&, Stream) const { unsupported("gelu_backward"); }
  virtual void swiglu_recompute(const SwigluRecomputeArgs&, Stream) const { unsupported("swiglu_recompute"); }
  virtual void swiglu_forward(const SwigluForwardArgs&, Stream) const { unsupported("swiglu_forward"); }
  virtual void swiglu_backward(const SwigluBackwardArgs&, Stream) const { unsupported("swiglu_backward"); }
  virtual void rope(const RopeArgs&, Stream) const { unsupported("rope"); }
  virtual void residual_add(const ResidualAddArgs&, Stream) const { unsupported("residual_add"); }
  virtual void embedding_forward(const EmbeddingForwardArgs&, Stream) const {
    unsupported("embedding_forward");
  }
  virtual void embedding_backward(const EmbeddingBackwardArgs&, Stream) const {
    unsupported("embedding_backward");
  }
  virtual void cross_entropy(const CrossEntropyArgs&, Stream) const { unsupported("cross_entropy"); }
  virtual void gemm(const GemmArgs&, Stream) const { unsupported("gemm"); }
  virtual void adamw(const AdamWArgs&, Stream) const { unsupported("adamw"); }
  // The same step with the error of what it stores measured on the way; waits for it.
  virtual void adamw_measured(const AdamWArgs&, AdamWErrors* errors, Stream) const;
  // *out += sum of squares of all arrays; NaN or Inf among them makes it non-finite. Double, fixed order.
  virtual void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out, Stream) const;
  virtual void clip_factor(const ClipFactorArgs&, Stream) const { unsupported("clip_factor"); }
  // *sums += error of `stored` against `reference` (FP32 or BF16, no scaling).
  virtual void quantization_error(ConstMatrix reference, ConstMatrix stored, ErrorSums* sums, Stream) const;

 protected:
  [[noreturn]] void unsupported(const char* operation) const;
};

}  // namespace coat::kernels
