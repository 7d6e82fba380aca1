#include "worker/core/quant/format.h"

#include <bit>
#include <limits>

namespace coat {

float max_value(Format format) {
  switch (format) {
    case Format::kFp32:
      return std::numeric_limits<float>::max();
    case Format::kBf16:
      return std::bit_cast<float>(0x7F7F0000u);
    case Format::kE4M3:
      return 448.0f;
    case Format::kE5M2:
      return 57344.0f;
  }
  return 0.0f;
}

const char* name_of(Format format) {
  switch (format) {
    case Format::kFp32:
      return "fp32";
    case Format::kBf16:
      return "bf16";
    case Format::kE4M3:
      return "e4m3";
    case Format::kE5M2:
      return "e5m2";
  }
  return "unknown";
}

const char* name_of(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kFp32:
      return "fp32";
    case ScaleFormat::kBf16:
      return "bf16";
    case ScaleFormat::kBf16Up:
      return "bf16-up";
    case ScaleFormat::kE8M0:
      return "e8m0";
  }
  return "unknown";
}

}  // namespace coat
