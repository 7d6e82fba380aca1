#include "proto/common/byte_size.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace coat {

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr double kStep = 1024;
  if (std::abs(static_cast<double>(bytes)) < kStep) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / kStep;
  std::size_t unit = 0;
  // 1023.96 would be shown as "1024".
  while (std::abs(value) >= kStep - 0.5 && unit + 1 < kUnits.size()) {
    value /= kStep;
    ++unit;
  }
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "%.*f", value < 99.95 ? 1 : 0, value);
  return std::string(number.data()) + " " + kUnits[unit];
}

std::string exact_bytes_text(std::int64_t bytes) {
  return bytes_text(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace coat
