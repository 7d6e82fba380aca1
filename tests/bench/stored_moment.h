// One moment through a storage format and back, on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/core/kernels/cpu/moment_codec.h"

namespace coat::bench {

// Memory for a moment in that format, all zero.
class StoredMoment {
 public:
  StoredMoment(const MomentFormat& format, MomentUse use, std::int64_t elements);

  // Stores `values`; random numbers are those of (seed 1, step, tensor).
  void store(const std::vector<float>& values, std::uint64_t step, std::uint32_t tensor);
  void load(std::vector<float>& values) const;

 private:
  kernels::MomentData data() const;

  kernels::cpu::MomentCodec codec_;
  std::int64_t elements_;
  mutable std::vector<float> codes_, amax_;  // more than enough for one byte and for BF16
  mutable std::vector<std::uint8_t> rows_;
  std::vector<float> ratio_;
  std::vector<std::uint32_t> random_;
};

// "e4m3", "e4m3+X" where it expands.
std::string label_of(const MomentFormat& format);

}  // namespace coat::bench
