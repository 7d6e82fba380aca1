// Small models and batches for the tests of this folder.
#pragma once

#include <memory>
#include <string>

#include "spec/job_spec.h"
#include "worker/core/model/language_model.h"

namespace coat {

struct Shape {
  std::int64_t vocab = 61, hidden = 48, intermediate = 88, layers = 2, heads = 4, kv_heads = 4;
  bool tied = false;
  std::int64_t sequences = 2, length = 17;

  spec::ModelSpec model() const;
  std::string name() const;
};

// A preset, or one with a change after "_": "coat_saved" saves what coat recomputes, "coat_attention" keeps
// q, k, v and the attention output in FP8 too, "bf16_stochastic" has BF16 weights, "coat_master" has FP32
// weights and gradients.
Recipe recipe_named(const std::string& name);

// The name with letters, digits and underscores alone, as GoogleTest wants names.
std::string test_name(std::string recipe_name);

std::unique_ptr<LanguageModel> make_model(const Shape& shape, const std::string& recipe_name);

// Random tokens, the next of each as its target, every fifth target masked out where `masked`.
MicroBatch make_batch(const Shape& shape, std::uint64_t seed, bool masked = false);

// Counting targets of the batch.
double counting(const MicroBatch& batch);

}  // namespace coat
