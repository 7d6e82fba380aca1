// Matrices whose storage is known when a kernel is compiled.
//
// Every kernel is a template over its matrices. A DeviceMatrix is read by asking it for its format at run
// time, which every shape and format can do; a Typed one has the same members as constants, so that the same
// source becomes straight-line code with wide accesses. Both give the same bits.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/device_matrix.h"

namespace coat::kernels::cuda {

// Whole chunks only. Its constants hide the members of the same name. Groups: 16 elements, BF16 scales to
// nearest; a tensor's one scale has any format.
template <Format kFormat, Scaling kScaling = Scaling::kNone>
struct Typed : DeviceMatrix {
  explicit Typed(const DeviceMatrix& matrix) : DeviceMatrix(matrix) {}
  static constexpr Format format = kFormat;
  static constexpr Scaling scaling = kScaling;
  static constexpr int group = kScaling == Scaling::kGroup ? 16 : 1;
  static constexpr bool whole_chunks = true;
};
using Fp32Matrix = Typed<Format::kFp32>;
using Bf16Matrix = Typed<Format::kBf16>;
using TensorE4M3 = Typed<Format::kE4M3, Scaling::kTensor>;
using TensorE5M2 = Typed<Format::kE5M2, Scaling::kTensor>;
using GroupedE4M3 = Typed<Format::kE4M3, Scaling::kGroup>;

// No matrix: what is not wanted costs nothing.
struct NoMatrix {};

template <typename M>
inline constexpr bool kIsTyped = false;
template <Format kFormat, Scaling kScaling>
inline constexpr bool kIsTyped<Typed<kFormat, kScaling>> = true;

// Whether a kernel's argument of that type may be a matrix at all.
template <typename M>
inline constexpr bool kCanExist = true;
template <>
inline constexpr bool kCanExist<NoMatrix> = false;

inline bool fits(const DeviceMatrix& m, Format format, Scaling scaling) {
  if (!m.whole_chunks || m.format != format || m.scaling != scaling) return false;
  return scaling != Scaling::kGroup ||
         (m.group == GroupedE4M3::group && m.scale_format == ScaleFormat::kBf16 &&
          m.cols % GroupedE4M3::group == 0);
}
inline bool is_bf16(const DeviceMatrix& m) { return fits(m, Format::kBf16, Scaling::kNone); }
inline bool is_fp32(const DeviceMatrix& m) { return fits(m, Format::kFp32, Scaling::kNone); }
inline bool is_grouped(const DeviceMatrix& m) { return fits(m, Format::kE4M3, Scaling::kGroup); }

// The same elements as one long row: chunk i of a Typed matrix then lies at its i-th place, and no index is
// divided. Groups lie as they did, since rows are whole groups.
inline DeviceMatrix as_one_row(DeviceMatrix m) {
  m.cols *= m.rows;
  m.groups_per_row *= m.rows;
  m.rows = 1;
  return m;
}

}  // namespace coat::kernels::cuda
