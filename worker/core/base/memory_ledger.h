// Bytes that a training step holds, by category (DESIGN: the ledger is closed-form, predicts, admits, and is
// checked).
#pragma once

#include <cstdint>

namespace coat {

struct MemoryLedger {
  std::int64_t weights = 0;  // master weights
  std::int64_t gradients = 0;
  std::int64_t moment1 = 0;  // payload and scales
  std::int64_t moment2 = 0;
  std::int64_t activations = 0;  // saved for backward, all layers of one micro-batch
  std::int64_t workspace = 0;    // the largest transient of a step beside the above
  std::int64_t total() const { return weights + gradients + moment1 + moment2 + activations + workspace; }
  bool operator==(const MemoryLedger&) const = default;
};

}  // namespace coat
