#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/core/base/error.h"
#include "worker/core/optim/adamw.h"

namespace coat {

double Schedule::learning_rate(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const std::int64_t decay_steps = total_steps - warmup_steps;
  const double passed =
      static_cast<double>(step - warmup_steps) / static_cast<double>(std::max<std::int64_t>(1, decay_steps));
  const double progress = decay_steps > 0 ? std::min(1.0, passed) : 0.0;
  if (kind == "constant") return peak;
  if (kind == "linear") return peak * (1.0 - (1.0 - final_fraction) * progress);
  if (kind == "cosine") {
    const double fraction = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    return peak * (final_fraction + (1.0 - final_fraction) * fraction);
  }
  throw SpecError("optimizer.schedule", "there is no schedule '" + kind + "'",
                  "use one of: cosine, linear, constant");
}

}  // namespace coat
