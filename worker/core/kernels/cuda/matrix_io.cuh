// Reading and writing matrices in every storage format, 8 elements of a row at a time. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/chunk_values.cuh"
#include "worker/core/kernels/cuda/typed_matrix.cuh"
#include "worker/core/quant/scale.h"

namespace coat::kernels::cuda {

template <typename M>
__device__ constexpr ScaleFormat scale_format_of(const M& m) {
  if constexpr (kIsTyped<M>) {
    if (M::scaling == Scaling::kGroup) return ScaleFormat::kBf16;
  }
  return m.scale_format;
}

template <typename M>
__device__ inline float scale_at(const M& m, std::int64_t index) {
  switch (scale_format_of(m)) {
    case ScaleFormat::kBf16:
    case ScaleFormat::kBf16Up:
      return decode_bf16(static_cast<const std::uint16_t*>(m.scale)[index]);
    case ScaleFormat::kE8M0:
      return decode_e8m0(static_cast<const std::uint8_t*>(m.scale)[index]);
    case ScaleFormat::kFp32:
      break;
  }
  return static_cast<const float*>(m.scale)[index];
}

// Rounded as the matrix's scale format says.
template <typename M>
__device__ inline void write_scale(const M& m, std::int64_t index, float scale) {
  switch (scale_format_of(m)) {
    case ScaleFormat::kFp32:
      static_cast<float*>(m.scale)[index] = scale;
      return;
    case ScaleFormat::kBf16:
      static_cast<std::uint16_t*>(m.scale)[index] = encode_bf16(scale);
      return;
    case ScaleFormat::kBf16Up:
      static_cast<std::uint16_t*>(m.scale)[index] = encode_bf16_up(scale);
      return;
    case ScaleFormat::kE8M0:
      static_cast<std::uint8_t*>(m.scale)[index] = encode_e8m0(scale);
      return;
  }
}

// Of an element with a scale: where it lies.
__device__ inline std::int64_t scale_index(const DeviceMatrix& m, std::int64_t row, std::int64_t col) {
  if (m.scaling == Scaling::kTensor) return 0;
  if (m.scaling == Scaling::kRow) return row;
  return row / m.rows_per_scale * m.groups_per_row + col / m.group;
}

__device__ inline Codes load_whole_codes(const DeviceMatrix& m, std::int64_t index) {
  Codes codes;
  if (m.format == Format::kFp32) {
    const uint4* data = reinterpret_cast<const uint4*>(static_cast<const float*>(m.data) + index);
    const uint4 low = data[0], high = data[1];
    codes = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  } else if (m.format == Format::kBf16) {
    const uint4 pairs = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(m.data) + index);
    const std::uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) codes.x[i] = (words[i / 2] >> (16 * (i % 2))) & 0xFFFFu;
  } else {
    const uint2 quads = *reinterpret_cast<const uint2*>(static_cast<const std::uint8_t*>(m.data) + index);
    const std::uint32_t words[2] = {quads.x, quads.y};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) codes.x[i] = (words[i / 4] >> (8 * (i % 4))) & 0xFFu;
  }
  return codes;
}

__device__ inline std::uint32_t load_code(const DeviceMatrix& m, std::int64_t index) {
  if (m.format == Format::kFp32) return static_cast<const std::uint32_t*>(m.data)[index];
  if (m.format == Format::kBf16) return static_cast<const std::uint16_t*>(m.data)[index];
  return static_cast<const std::uint8_t*>(m.data)[index];
}

// Codes of the elements col .. col + 7 of a row; 0 beyond its end.
__device__ inline Codes load_codes(const DeviceMatrix& m, std::int64_t row, std::int64_t col) {
  const std::int64_t index = row * m.cols + col;
  if (m.whole_chunks && col < m.cols) return load_whole_codes(m, index);
  Codes codes;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) codes.x[i] = col + i < m.cols ? load_code(m, index + i) : 0;
  return codes;
}

__device__ inline void store_whole_codes(const DeviceMatrix& m, std::int64_t index, const Codes& codes) {
  if (m.format == Format::kFp32) {
    uint4* data = reinterpret_cast<uint4*>(static_cast<float*>(m.data) + index);
    data[0] = make_uint4(codes.x[0], codes.x[1], codes.x[2], codes.x[3]);
    data[1] = make_uint4(codes.x[4], codes.x[5], codes.x[6], codes.x[7]);
  } else if (m.format == Format::kBf16) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = codes.x[2 * i] | codes.x[2 * i + 1] << 16;
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(m.data) + index) =
        make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    std::uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[i] =
          codes.x[4 * i] | codes.x[4 * i + 1] << 8 | codes.x[4 * i + 2] << 16 | codes.x[4 * i + 3] << 24;
    }
    *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(m.data) + index) = make_uint2(words[0], words[1]);
  }
}

__device__ inline void store_code(const DeviceMatrix& m, std::int64_t index, std::uint32_t code) {
  if (m.format == Format::kFp32) {
    static_cast<std::uint32_t*>(m.data)[index] = code;
  } else if (m.format == Format::kBf16) {
    static_cast<std::uint16_t*>(m.data)[index] = static_cast<std::uint16_t>(code);
  } else {
    static_cast<std::uint8_t*>(m.data)[index] = static_cast<std::uint8_t>(code);
  }
}

// Elements beyond the row's end are not written.
__device__ inline void store_codes(const DeviceMatrix& m, std::int64_t row, std::int64_t col,
                                   const Codes& codes) {
  const std::int64_t index = row * m.cols + col;
  if (m.whole_chunks) {
    if (col < m.cols) store_whole_codes(m, index, codes);
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (col + i < m.cols) store_code(m, index + i, codes.x[i]);
  }
}

// The chunk at `index` of a Typed matrix, without its scale.
template <typename M>
__device__ inline Values load_typed(const M& m, std::int64_t index) {
  if constexpr (M::format == Format::kFp32) {
    const float4* data = reinterpret_cast<const float4*>(static_cast<const float*>(m.data) + index);
    const float4 low = data[0], high = data[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  } else if constexpr (M::format == Format::kBf16) {
    return decode_words(*reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(m.data) + index));
  } else {
    return decode_bytes<M::format>(
        *reinterpret_cast<const uint2*>(static_cast<const std::uint8_t*>(m.data) + index));
  }
}

template <typename M>
__device__ inline void store_typed(const M& m, std::int64_t index, const Values& v) {
  if constexpr (M::format == Format::kFp32) {
    float4* data = reinterpret_cast<float4*>(static_cast<float*>(m.data) + index);
    data[0] = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
    data[1] = make_float4(v.x[4], v.x[5], v.x[6], v.x[7]);
  } else if constexpr (M::format == Format::kBf16) {
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(m.data) + index) = encode_words(v);
  } else {
    *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(m.data) + index) = encode_bytes<M::format>(v);
  }
}

// load() below by the matrix's format at run time.
__device__ inline Values load_by_asking(const DeviceMatrix& m, std::int64_t row, std::int64_t col) {
  const Codes codes = load_codes(m, row, col);
  Values v;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = decode(m.format, codes.x[i]);
  if (m.scaling != Scaling::kNone) {
    if (m.group % kChunk == 0 || m.groups_per_row <= 1) {
      const float scale = col < m.cols ? scale_at(m, scale_index(m, row, col)) : 0.0f;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * scale;
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (col + i < m.cols) v.x[i] = v.x[i] * scale_at(m, scale_index(m, row, col + i));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = col + i < m.cols ? v.x[i] : 0.0f;
  return v;
}

// Decoded values of col .. col + 7; 0 beyond the row's end and beyond the last row.
template <typename M>
__device__ inline Values load(const M& m, std::int64_t row, std::int64_t col) {
  if (row >= m.rows) return Values{};
  if constexpr (kIsTyped<M>) {
    if (col >= m.cols) return Values{};
    const Values values = load_typed(m, row * m.cols + col);
    if constexpr (M::scaling == Scaling::kNone) return values;
    return times(values,
                 scale_at(m, M::scaling == Scaling::kTensor ? 0 : row * m.groups_per_row + col / m.group));
  } else {
    return load_by_asking(m, row, col);
  }
}

// store() below for a Typed matrix.
template <typename M>
__device__ inline void store_known(const M& m, std::int64_t row, std::int64_t col, const Values& v) {
  const bool inside = row < m.rows && col < m.cols;
  const std::int64_t index = row * m.cols + col;
  if constexpr (M::scaling == Scaling::kNone) {
    if (inside) store_typed(m, index, v);
  } else if constexpr (M::scaling == Scaling::kTensor) {
    if (inside) store_typed(m, index, times(v, __frcp_rn(scale_at(m, 0))));
  } else {
    constexpr int kLanes = M::group / kChunk;
    std::uint32_t largest = largest_magnitude(v);
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, offset));
    }
    if (!inside) return;
    const float scale = scale_from_amax(__uint_as_float(largest), max_of(M::format), m.rule.added);
    if (col % M::group == 0) write_scale(m, row * m.groups_per_row + col / M::group, scale);
    store_typed(m, index, times(v, __frcp_rn(code_scale(scale, ScaleFormat::kBf16, m.rule))));
  }
}

// The scale that the codes of a chunk are made with: the one that is stored, or of kGroup the one that is
// found among neighbouring lanes (see Cover) and stored here. Every lane of the warp takes part; 1 where
// nothing is to be stored.
__device__ inline float scale_for_codes(const DeviceMatrix& m, std::int64_t row, std::int64_t col,
                                        const Values& v, int lanes_per_group) {
  const bool inside = row < m.rows && col < m.cols;
  if (m.scaling != Scaling::kGroup) {
    return inside && m.scaling != Scaling::kNone ? scale_at(m, scale_index(m, row, col)) : 1.0f;
  }
  const std::uint32_t largest = largest_of_lanes(largest_magnitude(v), lanes_per_group);
  if (!inside) return 1.0f;
  const float scale = scale_from_amax(__uint_as_float(largest), m.largest, m.rule.added);
  if (col % m.group == 0) write_scale(m, scale_index(m, row, col), scale);
  return code_scale(scale, m.scale_format, m.rule);
}

// store() below by the matrix's format at run time.
__device__ inline void store_by_asking(const DeviceMatrix& m, std::int64_t row, std::int64_t col,
                                       const Values& v, int lanes_per_group) {
  const float scale = scale_for_codes(m, row, col, v, lanes_per_group);
  if (row >= m.rows) return;
  store_codes(m, row, col,
              m.scaling == Scaling::kNone ? encode(m.format, v) : encode_scaled(m.format, v, scale));
}

// Stores values that are 0 beyond the row's end. kTensor, kRow, kBlock: with the scale that is stored
// already. kGroup: finds the scale of their group among neighbouring lanes (see Cover). Every lane of the
// warp takes part; lanes with row >= rows store nothing.
template <typename M>
__device__ inline void store(const M& m, std::int64_t row, std::int64_t col, const Values& v,
                             int lanes_per_group) {
  if constexpr (kIsTyped<M>) {
    store_known(m, row, col, v);
  } else {
    store_by_asking(m, row, col, v, lanes_per_group);
  }
}

// Stores codes of a BF16 matrix without scales and joins them to `halves` (larger_halves). kInside: the chunk
// is known to lie in the matrix.
template <bool kInside = false, typename M>
__device__ inline void store_words(const M& m, std::int64_t row, std::int64_t col, uint4 words,
                                   std::uint32_t& halves) {
  if (!kInside && (row >= m.rows || col >= m.cols)) return;
  *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(m.data) + row * m.cols + col) = words;
  halves = larger_halves(halves, words);
}

// The same of values, which are 0 beyond the row's end.
template <bool kInside = false, typename M>
__device__ inline void store_rounded(const M& m, std::int64_t row, std::int64_t col, const Values& v,
                                     std::uint32_t& halves) {
  if constexpr (kIsTyped<M>) {
    store_words<kInside>(m, row, col, encode_words(v), halves);
  } else {
    if (row >= m.rows) return;
    store_codes(m, row, col, encode(Format::kBf16, v));
    halves = larger_halves(halves, encode_words(v));
  }
}

}  // namespace coat::kernels::cuda
