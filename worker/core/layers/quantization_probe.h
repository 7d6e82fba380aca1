// Where the quantization error of a step is added up.
#pragma once

#include <map>
#include <string>

#include "worker/core/kernels/api/kernels.h"

namespace coat {

// Where layers add up the quantization error of what they store, by tensor class ("activation", "weight",
// "gradient"). Handed in on the steps where it is measured; nullptr otherwise. A class whose tensors are
// stored as they are (BF16 activations under recipe bf16) does not appear.
struct QuantizationProbe {
  std::map<std::string, kernels::ErrorSums> classes;
};

}  // namespace coat
