// Whether a stored moment follows gradients that have become small (COAT.md 5.4): gradients of a tenth of the
// elements shrink tenfold once the moments have settled, and what is stored of those elements is held against
// FP32, 3 and 6 time constants (1 / (1 - beta) steps) later.
#pragma once

#include "worker/core/quant/moment_format.h"

namespace coat::bench {

// Stored v / FP32 v.
struct StalenessOfV {
  double mean = 0, geometric_mean = 0;
};
struct StalenessOfM {
  double size = 0;   // sum of |stored m| / sum of |FP32 m|
  double error = 0;  // ||stored m - FP32 m|| / ||FP32 m||
};

template <typename Staleness>
struct AfterTimeConstants {
  Staleness three, six;
};
AfterTimeConstants<StalenessOfM> staleness_of_m(const MomentFormat& format, double beta1);
AfterTimeConstants<StalenessOfV> staleness_of_v(const MomentFormat& format, double beta2);

}  // namespace coat::bench
