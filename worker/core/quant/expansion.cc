#include "worker/core/quant/expansion.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/core/quant/fp8.h"

namespace coat {
namespace {

double fraction_of_largest(int code) {
  return static_cast<double>(decode_e4m3(static_cast<std::uint8_t>(code))) / 448.0;
}

}  // namespace

const ExpansionTable& ExpansionTable::instance() {
  static const ExpansionTable table;
  return table;
}

ExpansionTable::ExpansionTable() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int k16 = 0; k16 < 256; ++k16) {
    Row& values = values_[static_cast<std::size_t>(k16)];
    Row& boundaries = boundaries_[static_cast<std::size_t>(k16)];
    values.fill(kInfinity);
    boundaries.fill(kInfinity);
    const double exponent = 16.0 / std::max(k16, kMinK16);
    for (int code = 0; code < kExpandedCodes; ++code) {
      const auto index = static_cast<std::size_t>(code);
      values[index] = static_cast<float>(std::pow(fraction_of_largest(code), exponent));
      if (code + 1 == kExpandedCodes) break;
      const double middle = (fraction_of_largest(code) + fraction_of_largest(code + 1)) / 2.0;
      boundaries[index] = static_cast<float>(std::pow(middle, exponent));
    }
  }
}

ExpansionRange::ExpansionRange(double bound) {
  largest_ratio_[0] = std::numeric_limits<double>::infinity();
  for (int k16 = 1; k16 < 256; ++k16) {
    largest_ratio_[static_cast<std::size_t>(k16)] = std::pow(bound, 16.0 / k16);
  }
}

}  // namespace coat
