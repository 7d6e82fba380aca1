// Whether a stored second moment follows gradients that have become small (COAT.md 5.4).
#pragma once

#include "worker/core/quant/moment_format.h"

namespace coat::bench {

// Gradients of a tenth of the elements shrink tenfold once v has settled; the ratio stored v / FP32 v of
// those, mean and geometric mean, 3 and 6 time constants (1 / (1 - beta2) steps) later.
struct Staleness {
  double mean3 = 0, geometric3 = 0, mean6 = 0, geometric6 = 0;
};
Staleness staleness(const MomentFormat& format, double beta2);

}  // namespace coat::bench
