#include "worker/core/quant/moment_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "worker/core/quant/fp8.h"

namespace coat {
namespace {

constexpr double kSmallestLog2 = -149.0;    // of FP32's subnormal numbers
constexpr double kLargestLogRange = 126.0;  // log255's values stay normal numbers
constexpr int kLogRowsPerOctave = 22;       // of log255's exponent

// log2 of the range of a row of log255.
double log_range(int row) {
  return kLargestLogRange * std::exp2(-static_cast<double>(row) / kLogRowsPerOctave);
}

// What a code stands for before it is expanded: `magnitudes` rise from 0 to 1, `boundaries[c]` is where codes
// c and c + 1 meet.
struct Base {
  std::vector<double> magnitudes, boundaries;
};

Base with_middles(std::vector<double> magnitudes) {
  Base base{std::move(magnitudes), {}};
  for (std::size_t i = 0; i + 1 < base.magnitudes.size(); ++i) {
    base.boundaries.push_back((base.magnitudes[i] + base.magnitudes[i + 1]) / 2.0);
  }
  return base;
}

Base fp8_base(float (*decode)(std::uint8_t), int count) {
  std::vector<double> magnitudes;
  const double largest = double{decode(static_cast<std::uint8_t>(count - 1))};
  for (int code = 0; code < count; ++code) {
    magnitudes.push_back(double{decode(static_cast<std::uint8_t>(code))} / largest);
  }
  return with_middles(std::move(magnitudes));
}

// Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR 2016), as bitsandbytes' dynamic map
// has it: decade d of 7 below 1 is cut into `smallest_cells` 2^d cells of [0.1, 1), whose middles are the
// values; 0 and 1 are added. For signed values 1 has no negative there, so that there is one value more above
// zero; here the largest middle, 0.993, is 1 instead, so that amax of either sign is exact.
Base dynamic_base(int smallest_cells, bool has_sign) {
  constexpr int kDecades = 7;
  std::vector<double> magnitudes = {0.0};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int cells = smallest_cells << decade;
    for (int cell = 0; cell < cells; ++cell) {
      magnitudes.push_back((0.1 + 0.9 * (cell + 0.5) / cells) * std::pow(10.0, decade - (kDecades - 1)));
    }
  }
  if (has_sign) magnitudes.pop_back();
  magnitudes.push_back(1.0);
  return with_middles(std::move(magnitudes));
}

// Codes at equal steps of a companded value: magnitude = expanded(c / (count - 1)), rounded in that domain.
Base companded_base(double (*expanded)(double), int count) {
  Base base;
  for (int code = 0; code < count; ++code) {
    base.magnitudes.push_back(expanded(static_cast<double>(code) / (count - 1)));
    if (code + 1 < count) base.boundaries.push_back(expanded((code + 0.5) / (count - 1)));
  }
  return base;
}

// log255: exponents in [-1, 0] of the row's range; the place of 0 has none.
Base log_base() {
  Base base;
  for (int code = 0; code < 256; ++code) {
    base.magnitudes.push_back(-(255.0 - code) / 254.0);
    if (code < 255) base.boundaries.push_back(-(254.5 - code) / 254.0);
  }
  return base;
}

Base base_of(MomentCode code) {
  switch (code) {
    case MomentCode::kE4M3:
      return fp8_base(decode_e4m3, E4M3Layout::kMaxFiniteCode + 1);
    case MomentCode::kE5M2:
      return fp8_base(decode_e5m2, E5M2Layout::kMaxFiniteCode + 1);
    case MomentCode::kDe8:
      return dynamic_base(1, true);
    case MomentCode::kDe8Unsigned:
      return dynamic_base(2, false);
    case MomentCode::kLog255:
      return log_base();
    case MomentCode::kSoftsign8:
      return companded_base([](double y) { return y / (2.0 - y); }, 128);
    case MomentCode::kSqrt8:
      return companded_base([](double y) { return y * y; }, 256);
    case MomentCode::kFp32:
    case MomentCode::kOctave8:
    case MomentCode::kOctave8Unsigned:
      break;
  }
  throw std::logic_error("a moment code without base magnitudes");
}

double expanded(MomentCode code, double base, int row) {
  return code == MomentCode::kLog255 ? std::exp2(base * log_range(row)) : std::pow(base, 16.0 / row);
}

}  // namespace

const MomentTable& MomentTable::of(MomentCode code) {
  switch (code) {
    case MomentCode::kE4M3: {
      static const MomentTable table(MomentCode::kE4M3);
      return table;
    }
    case MomentCode::kE5M2: {
      static const MomentTable table(MomentCode::kE5M2);
      return table;
    }
    case MomentCode::kDe8: {
      static const MomentTable table(MomentCode::kDe8);
      return table;
    }
    case MomentCode::kDe8Unsigned: {
      static const MomentTable table(MomentCode::kDe8Unsigned);
      return table;
    }
    case MomentCode::kLog255: {
      static const MomentTable table(MomentCode::kLog255);
      return table;
    }
    case MomentCode::kSoftsign8: {
      static const MomentTable table(MomentCode::kSoftsign8);
      return table;
    }
    case MomentCode::kSqrt8: {
      static const MomentTable table(MomentCode::kSqrt8);
      return table;
    }
    case MomentCode::kOctave8: {
      static const MomentTable table(MomentCode::kOctave8);
      return table;
    }
    case MomentCode::kOctave8Unsigned: {
      static const MomentTable table(MomentCode::kOctave8Unsigned);
      return table;
    }
    case MomentCode::kFp32:
      break;
  }
  throw std::logic_error("moments in FP32 have no table");
}

MomentTable::MomentTable(MomentCode code) : code_(code), width_(is_signed(code) ? 128 : 256), first_row_(0) {
  if (is_octave(code)) {
    fill_octaves();
    return;
  }
  const Base base = base_of(code);
  count_ = static_cast<int>(base.magnitudes.size());
  if (code != MomentCode::kLog255) {
    first_row_ = static_cast<int>(std::ceil(16.0 * std::log2(base.magnitudes[1]) / kSmallestLog2));
  }
  const auto places = static_cast<std::size_t>(kMomentRows * width_);
  values_.assign(places, std::numeric_limits<float>::infinity());
  boundaries_.assign(places, std::numeric_limits<float>::quiet_NaN());
  for (int row = 0; row < kMomentRows; ++row) {
    float* values = values_.data() + row * width_;
    float* boundaries = boundaries_.data() + row * width_;
    const int used = std::max(row, first_row_);
    values[0] = 0.0f;
    for (std::size_t i = 1; i < base.magnitudes.size(); ++i) {
      values[i] = static_cast<float>(expanded(code, base.magnitudes[i], used));
    }
    for (std::size_t i = 0; i < base.boundaries.size(); ++i) {
      boundaries[i] = static_cast<float>(expanded(code, base.boundaries[i], used));
    }
  }
}

void MomentTable::fill_octaves() {
  const int top = octave_top(code_);
  count_ = top + 1;
  first_row_ = octave_first_row(top);
  boundaries_.assign(static_cast<std::size_t>(kMomentRows * width_), std::numeric_limits<float>::quiet_NaN());
  for (int row = 0; row < kMomentRows; ++row) {
    const int n = octave_row_used(top, row);
    float* boundaries = boundaries_.data() + row * width_;
    for (int code = 0; code <= top; ++code) {
      values_.push_back(octave_value(top, n, code));
      unstretched_.push_back(octave_unstretched(top, n, code));
    }
    for (int code = 0; code < top; ++code) {
      boundaries[code] = (octave_value(top, n, code) + octave_value(top, n, code + 1)) / 2.0f;
    }
  }
}

float MomentTable::stretch(int row) const {
  if (!is_octave(code_)) return 1.0f;
  const int top = octave_top(code_);
  return octave_tail(top, octave_row_used(top, row)).stretch;
}

double MomentTable::exponent(int row) const {
  if (is_octave(code_)) return octave_row_used(octave_top(code_), row) / 8.0;  // E4M3 has 8 codes an octave
  if (code_ == MomentCode::kLog255) return std::log2(kE4M3RangeBound) / log_range(row);
  return row / 16.0;
}

RowChoice::RowChoice(const MomentFormat& format)
    : code_(format.code),
      expands_(format.expand),
      first_row_(MomentTable::of(format.code).first_row()),
      limits_{} {
  limits_[0] = std::numeric_limits<double>::infinity();
  for (int row = 0; row < kMomentRows; ++row) {
    double& limit = limits_[static_cast<std::size_t>(row)];
    if (format.code == MomentCode::kLog255) {
      limit = std::exp2(log_range(row));
    } else if (row > 0) {
      limit = std::pow(format.range_bound, 16.0 / row);
    }
  }
}

}  // namespace coat
