// A precision recipe: which format every tensor of a training step has. Layers ask this struct and never its
// name.
#pragma once

#include <string>
#include <vector>

#include "worker/core/quant/format.h"
#include "worker/core/quant/moment_format.h"
#include "worker/core/quant/weight_format.h"

namespace coat {

struct Recipe {
  std::string name;

  TensorFormat
      linear_operand;  // activations and weights that enter a product in forward, and again in backward
  TensorFormat linear_gradient;  // output gradients that enter the products of backward
  TensorFormat
      saved_nonlinear;  // inputs of norms, gate and up: what the non-linear layers read, forward and backward
  TensorFormat saved_attention;  // q, k, v after RoPE and the attention output

  // The numbers with which weights enter every operation: kFp32, the master itself, or kBf16, its rounding.
  Format weight_values = Format::kFp32;

  // What is saved although backward could recompute it from the saved inputs above.
  bool save_norm_output = false;
  bool save_activation = false;  // silu(gate)
  bool save_product = false;     // silu(gate) * up

  // silu(gate) * up and the gradient of up are made from the silu(gate) that is saved (needs
  // save_activation), else from its FP32 value wherever that is at hand.
  bool product_reads_saved_activation = false;
  // The gradient of silu(gate) is rounded to BF16 on its way to that of gate.
  bool round_activation_gradient = false;
  // To what the product of a weight gradient is rounded before it is added: kFp32, nothing, or kBf16.
  Format weight_gradient_product = Format::kFp32;
  // In what the input gradients of products that read one input are added up; kBf16: as are the products.
  Format input_gradient_sum = Format::kFp32;

  // What the optimizer keeps. Vectors (norm weights) stay in FP32.
  MomentFormat moment1;
  MomentFormat moment2;
  WeightFormat weights = WeightFormat::kFp32;  // of matrices
  Format weight_gradient = Format::kFp32;      // of the layers' matrices: kFp32 or kBf16; others are FP32

  bool operator==(const Recipe&) const = default;
};

// The preset of that name; throws SpecError(field "recipe") with the list of names.
const Recipe& recipe(const std::string& name);
// The default first.
std::vector<std::string> recipe_preset_names();

}  // namespace coat
