#include "worker/core/quant/moment_format.h"

#include <stdexcept>
#include <string>

#include "worker/core/quant/moment_table.h"

namespace coat {

const char* name_of(MomentCode code) {
  switch (code) {
    case MomentCode::kFp32:
      return "fp32";
    case MomentCode::kE4M3:
      return "e4m3";
    case MomentCode::kE5M2:
      return "e5m2";
    case MomentCode::kDe8:
      return "de8";
    case MomentCode::kDe8Unsigned:
      return "de8-unsigned";
    case MomentCode::kLog255:
      return "log255";
    case MomentCode::kSoftsign8:
      return "softsign8";
    case MomentCode::kSqrt8:
      return "sqrt8";
    case MomentCode::kOctave8:
      return "octave8";
    case MomentCode::kOctave8Unsigned:
      return "octave8-unsigned";
  }
  return "unknown";
}

double default_range_bound(MomentCode code) {
  switch (code) {
    case MomentCode::kFp32:
    case MomentCode::kLog255:
    case MomentCode::kOctave8:
    case MomentCode::kOctave8Unsigned:
    case MomentCode::kE4M3:
      return kE4M3RangeBound;
    case MomentCode::kE5M2:
      return 57344.0 * 57344.0 / 2.0;
    default:
      return 1.0 / static_cast<double>(MomentTable::of(code).values(kPlainRow)[2]);
  }
}

MomentFormat moment_format(MomentCode code, bool expand, int group, Rounding rounding) {
  return {.code = code,
          .group = group,
          .expand = expand,
          .range_bound = default_range_bound(code),
          .rounding = rounding};
}

void require_usable(const MomentFormat& format, MomentUse use) {
  if (!format.is_quantized()) return;
  const std::string name = std::string(use == MomentUse::kFirst ? "the first moment" : "the second moment") +
                           " as " + name_of(format.code);
  if (format.group <= 0) throw std::logic_error(name + " has groups of no elements");
  if (use == MomentUse::kFirst && !is_signed(format.code)) {
    throw std::logic_error(name + ": the code has no negative values");
  }
  if (always_expands(format.code) && !format.expand) {
    throw std::logic_error(name + ": the code is made for a range that each group stores");
  }
  if (format.amax_format != Format::kFp32 && format.amax_format != Format::kBf16) {
    throw std::logic_error(name + ": amax is stored in FP32 or BF16");
  }
  if (format.expand && !(format.range_bound > 1.0))
    throw std::logic_error(name + ": the range bound is not above 1");
}

}  // namespace coat
