// Sums of quantization error, as layers and the optimizer add them up, made into the figures of a report.
#pragma once

#include <vector>

#include "worker/core/layers/quantization_probe.h"
#include "worker/core/optim/adamw.h"
#include "worker/core/quant/recipe.h"
#include "worker/core/train/report.h"

namespace coat::train {

// Classes in a fixed order; one without elements, or whose moments are not quantized, is left out.
std::vector<QuantizationFigure> quantization_figures(const Recipe& recipe, const QuantizationProbe& probe,
                                                     const AdamWStepResult& step);

}  // namespace coat::train
