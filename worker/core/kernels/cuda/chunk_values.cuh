// Eight values or codes of a thread, and how the one becomes the other. Device code only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "worker/core/kernels/cuda/device_matrix.h"
#include "worker/core/quant/bf16.h"
#include "worker/core/quant/fp8.h"

namespace coat::kernels::cuda {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
inline constexpr int kWarp = 32;

struct Values {
  float x[kChunk];
};

struct Codes {
  std::uint32_t x[kChunk];
};

__device__ constexpr float max_of(Format format) { return format == Format::kE4M3 ? 448.0f : 57344.0f; }

// NaN compares above everything this way, so that a maximum keeps it.
__device__ inline std::uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

__device__ inline std::uint32_t largest_magnitude(const Values& v) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) largest = max(largest, magnitude_bits(v.x[i]));
  return largest;
}

__device__ inline float decode(Format format, std::uint32_t code) {
  switch (format) {
    case Format::kFp32:
      return __uint_as_float(code);
    case Format::kBf16:
      return decode_bf16(static_cast<std::uint16_t>(code));
    case Format::kE4M3:
      return decode_e4m3(static_cast<std::uint8_t>(code));
    case Format::kE5M2:
      return decode_e5m2(static_cast<std::uint8_t>(code));
  }
  return 0.0f;
}

__device__ inline std::uint32_t encode(Format format, float value) {
  switch (format) {
    case Format::kFp32:
      return __float_as_uint(value);
    case Format::kBf16:
      return encode_bf16(value);
    case Format::kE4M3:
      return encode_e4m3(value);
    case Format::kE5M2:
      return encode_e5m2(value);
  }
  return 0;
}

// 8 codes of one byte as values, by the device's own conversion: the bits of decode_e4m3 and decode_e5m2.
template <Format kFormat>
__device__ inline Values decode_bytes(uint2 codes) {
  constexpr auto kKind = kFormat == Format::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t words[2] = {codes.x, codes.y};
  Values v;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (16 * (i % 2)));
    const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, kKind)));
    v.x[2 * i] = both.x;
    v.x[2 * i + 1] = both.y;
  }
  return v;
}

// The bits of encode_e4m3 and encode_e5m2.
template <Format kFormat>
__device__ inline uint2 encode_bytes(const Values& v) {
  constexpr auto kKind = kFormat == Format::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  std::uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low =
        __nv_cvt_float2_to_fp8x2(make_float2(v.x[4 * i], v.x[4 * i + 1]), __NV_SATFINITE, kKind);
    const std::uint32_t high =
        __nv_cvt_float2_to_fp8x2(make_float2(v.x[4 * i + 2], v.x[4 * i + 3]), __NV_SATFINITE, kKind);
    words[i] = low | high << 16;
  }
  return make_uint2(words[0], words[1]);
}

__device__ inline Values decode_words(uint4 codes) {
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  Values v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v.x[2 * i] = __uint_as_float(words[i] << 16);
    v.x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
  return v;
}

// The bits of encode_bf16, but for the payload of a NaN.
__device__ inline uint4 encode_words(const Values& v) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v.x[2 * i], v.x[2 * i + 1]);
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Magnitudes of BF16 codes in both halves of a word, the larger ones of `halves` and of the codes. NaN
// compares above everything, as in magnitude_bits.
__device__ inline std::uint32_t larger_halves(std::uint32_t halves, uint4 codes) {
  constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFu;
  halves = __vimax3_u16x2(halves, codes.x & kMagnitudes, codes.y & kMagnitudes);
  return __vimax3_u16x2(halves, codes.z & kMagnitudes, codes.w & kMagnitudes);
}

// The larger half as magnitude_bits has it.
__device__ inline std::uint32_t magnitude_of_halves(std::uint32_t halves) {
  return max(halves << 16, halves & 0xFFFF0000u);
}

__device__ inline Values times(Values v, float factor) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * factor;
  return v;
}

__device__ inline Codes encode(Format format, const Values& v) {
  Codes codes;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) codes.x[i] = encode(format, v.x[i]);
  return codes;
}

// The values after a round trip through BF16.
__device__ inline Values rounded_to_bf16(Values v) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = round_bf16(v.x[i]);
  return v;
}

// Codes for a stored scale: what every quantization here and on the CPU does.
__device__ inline Codes encode_scaled(Format format, const Values& v, float scale) {
  const float inverse = __frcp_rn(scale);
  Codes codes;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) codes.x[i] = encode(format, v.x[i] * inverse);
  return codes;
}

// The largest of `lanes` neighbouring lanes, a power of two. Every lane of the warp takes part.
__device__ inline std::uint32_t largest_of_lanes(std::uint32_t value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value = max(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}
}  // namespace coat::kernels::cuda
