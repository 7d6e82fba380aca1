#include "worker/core/kernels/cpu/span_codec.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "worker/core/quant/bf16.h"
#include "worker/core/quant/fp8.h"
#include "worker/core/quant/scale.h"

namespace coat::kernels::cpu {
namespace {

using Code = std::uint8_t;

void decode_e4m3_codes(const Code* __restrict codes, std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_e4m3(codes[i]);
}

void decode_e5m2_codes(const Code* __restrict codes, std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_e5m2(codes[i]);
}

void decode_bf16_values(const std::uint16_t* __restrict codes, std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_bf16(codes[i]);
}

void encode_bf16_values(const float* __restrict in, std::int64_t n, std::uint16_t* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = encode_bf16(in[i]);
}

template <typename Layout>
void encode_scaled(const float* __restrict in, std::int64_t n, float reciprocal, Code* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = encode_fp8<Layout>(in[i] * reciprocal);
}

template <typename Layout>
void encode_scaled_stochastic(const float* __restrict in, std::int64_t n, float reciprocal,
                              const PhiloxStream& random, std::int64_t first, Code* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float uniform = philox_uniform(random.word(static_cast<std::uint64_t>(first + i)));
    out[i] = encode_fp8_stochastic<Layout>(in[i] * reciprocal, uniform);
  }
}

// Finds and stores the scale of one group and returns the reciprocal that makes its codes.
float make_group_scale(const float* in, std::int64_t n, const Matrix& matrix, std::int64_t index) {
  return 1.0f / make_scale(matrix, index, std::bit_cast<float>(magnitude_bits(in, n)));
}

// Whole groups of 16, the group of the recipes: the values of many groups are scaled first and encoded in one
// long loop.
template <typename Layout>
void encode_groups_of_16(const float* __restrict in, std::int64_t n, const Matrix& matrix,
                         std::int64_t scale_index, Code* __restrict out) {
  constexpr std::int64_t kChunk = 1024;
  float scaled[kChunk];
  for (std::int64_t first = 0; first < n; first += kChunk) {
    const std::int64_t count = std::min(kChunk, n - first);
    for (std::int64_t i = 0; i < count; i += 16) {
      const float reciprocal = make_group_scale(in + first + i, 16, matrix, scale_index++);
      for (std::int64_t j = 0; j < 16; ++j) scaled[i + j] = in[first + i + j] * reciprocal;
    }
    encode_scaled<Layout>(scaled, count, 1.0f, out + first);
  }
}

template <typename Layout>
void encode_groups(const float* in, std::int64_t n, const Matrix& matrix, std::int64_t row, std::int64_t col,
                   Code* out) {
  const std::int64_t group = matrix.format.group;
  std::int64_t scale_index = matrix.format.scale_index(row, col, matrix.cols);
  std::int64_t done = 0;
  if (group == 16) {
    done = n / 16 * 16;
    encode_groups_of_16<Layout>(in, done, matrix, scale_index, out);
    scale_index += done / 16;
  }
  for (; done < n; done += group) {
    const std::int64_t count = std::min(group, n - done);
    const float reciprocal = make_group_scale(in + done, count, matrix, scale_index++);
    encode_scaled<Layout>(in + done, count, reciprocal, out + done);
  }
}

// Calls body(first, count) for the parts of a span that share one scale.
template <typename Body>
void for_each_run(const ConstMatrix& matrix, std::int64_t col, std::int64_t n, const Body& body) {
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t count = std::min(n - done, matrix.format.scale_run(col + done, matrix.cols));
    body(done, count);
    done += count;
  }
}

float stored_reciprocal(const Matrix& matrix, std::int64_t row, std::int64_t col) {
  return 1.0f / load_scale(matrix, matrix.format.scale_index(row, col, matrix.cols));
}

template <typename Layout>
void encode_fp8_span(const float* in, const Matrix& matrix, std::int64_t row, std::int64_t col,
                     std::int64_t n, Code* out) {
  switch (matrix.format.scaling) {
    case Scaling::kNone:
      return encode_scaled<Layout>(in, n, 1.0f, out);
    case Scaling::kTensor:
      return encode_scaled<Layout>(in, n, 1.0f / load_scale(matrix, 0), out);
    case Scaling::kGroup:
      return encode_groups<Layout>(in, n, matrix, row, col, out);
    case Scaling::kRow:
    case Scaling::kBlock:
      for_each_run(matrix, col, n, [&](std::int64_t first, std::int64_t count) {
        encode_scaled<Layout>(in + first, count, stored_reciprocal(matrix, row, col + first), out + first);
      });
  }
}

template <typename Layout>
void encode_fp8_span_stochastic(const float* in, const Matrix& matrix, std::int64_t row, std::int64_t col,
                                std::int64_t n, const PhiloxStream& random, Code* out) {
  const std::int64_t place = row * matrix.cols + col;
  const Scaling scaling = matrix.format.scaling;
  if (scaling == Scaling::kNone || scaling == Scaling::kTensor) {
    const float scale = scaling == Scaling::kTensor ? load_scale(matrix, 0) : 1.0f;
    return encode_scaled_stochastic<Layout>(in, n, 1.0f / scale, random, place, out);
  }
  for_each_run(matrix, col, n, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t index = matrix.format.scale_index(row, col + first, matrix.cols);
    const float reciprocal = scaling == Scaling::kGroup ? make_group_scale(in + first, count, matrix, index)
                                                        : 1.0f / load_scale(matrix, index);
    encode_scaled_stochastic<Layout>(in + first, count, reciprocal, random, place + first, out + first);
  });
}

void scale_runs(const ConstMatrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n,
                float* values) {
  for_each_run(matrix, col, n, [&](std::int64_t first, std::int64_t count) {
    const float scale = load_scale(matrix, matrix.format.scale_index(row, col + first, matrix.cols));
    for (std::int64_t i = first; i < first + count; ++i) values[i] *= scale;
  });
}

void scale_groups(const ConstMatrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n,
                  float* values) {
  const std::int64_t group = matrix.format.group;
  std::int64_t scale_index = matrix.format.scale_index(row, col, matrix.cols);
  std::int64_t done = 0;
  if (group == 16 && col % group == 0) {
    for (; done + 16 <= n; done += 16) {
      const float scale = load_scale(matrix, scale_index++);
      for (std::int64_t i = 0; i < 16; ++i) values[done + i] *= scale;
    }
  }
  scale_runs(matrix, row, col + done, n - done, values + done);
}

[[noreturn]] void reject(const char* what, const std::string& why) {
  throw std::logic_error(std::string(what) + " " + why);
}

}  // namespace

float load_scale(const ConstMatrix& matrix, std::int64_t index) {
  switch (matrix.format.scale_format) {
    case ScaleFormat::kBf16:
    case ScaleFormat::kBf16Up:
      return decode_bf16(static_cast<const std::uint16_t*>(matrix.scale)[index]);
    case ScaleFormat::kE8M0:
      return decode_e8m0(static_cast<const std::uint8_t*>(matrix.scale)[index]);
    case ScaleFormat::kFp32:
      break;
  }
  return static_cast<const float*>(matrix.scale)[index];
}

void store_scale(const Matrix& matrix, std::int64_t index, float scale) {
  switch (matrix.format.scale_format) {
    case ScaleFormat::kFp32:
      static_cast<float*>(matrix.scale)[index] = scale;
      return;
    case ScaleFormat::kBf16:
      static_cast<std::uint16_t*>(matrix.scale)[index] = encode_bf16(scale);
      return;
    case ScaleFormat::kBf16Up:
      static_cast<std::uint16_t*>(matrix.scale)[index] = encode_bf16_up(scale);
      return;
    case ScaleFormat::kE8M0:
      static_cast<std::uint8_t*>(matrix.scale)[index] = encode_e8m0(scale);
      return;
  }
}

float make_scale(const Matrix& matrix, std::int64_t index, float largest) {
  const TensorFormat& format = matrix.format;
  const float scale = scale_from_amax(largest, max_value(format.format), format.rule.added);
  store_scale(matrix, index, scale);
  return code_scale(scale, format.scale_format, format.rule);
}

void round_to_bf16(float* values, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) values[i] = round_bf16(values[i]);
}

void decode_codes(const ConstMatrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n, float* out) {
  const std::int64_t first = row * matrix.cols + col;
  switch (matrix.format.format) {
    case Format::kFp32:
      std::memcpy(out, static_cast<const float*>(matrix.data) + first,
                  static_cast<std::size_t>(n) * sizeof(float));
      return;
    case Format::kBf16:
      return decode_bf16_values(static_cast<const std::uint16_t*>(matrix.data) + first, n, out);
    case Format::kE4M3:
      return decode_e4m3_codes(static_cast<const Code*>(matrix.data) + first, n, out);
    case Format::kE5M2:
      return decode_e5m2_codes(static_cast<const Code*>(matrix.data) + first, n, out);
  }
}

void decode_span(const ConstMatrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n, float* out) {
  decode_codes(matrix, row, col, n, out);
  switch (matrix.format.scaling) {
    case Scaling::kNone:
      return;
    case Scaling::kTensor: {
      const float scale = load_scale(matrix, 0);
      for (std::int64_t i = 0; i < n; ++i) out[i] *= scale;
      return;
    }
    case Scaling::kGroup:
      return scale_groups(matrix, row, col, n, out);
    case Scaling::kRow:
    case Scaling::kBlock:
      return scale_runs(matrix, row, col, n, out);
  }
}

void encode_span(const float* in, const Matrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n) {
  const std::int64_t first = row * matrix.cols + col;
  switch (matrix.format.format) {
    case Format::kFp32:
      std::memcpy(static_cast<float*>(matrix.data) + first, in, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case Format::kBf16:
      return encode_bf16_values(in, n, static_cast<std::uint16_t*>(matrix.data) + first);
    case Format::kE4M3:
      return encode_fp8_span<E4M3Layout>(in, matrix, row, col, n, static_cast<Code*>(matrix.data) + first);
    case Format::kE5M2:
      return encode_fp8_span<E5M2Layout>(in, matrix, row, col, n, static_cast<Code*>(matrix.data) + first);
  }
}

void encode_span(const float* in, const Matrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n,
                 const PhiloxStream& random) {
  Code* out = static_cast<Code*>(matrix.data) + row * matrix.cols + col;
  if (matrix.format.format == Format::kE4M3) {
    encode_fp8_span_stochastic<E4M3Layout>(in, matrix, row, col, n, random, out);
  } else {
    encode_fp8_span_stochastic<E5M2Layout>(in, matrix, row, col, n, random, out);
  }
}

void require_storable(const ConstMatrix& matrix, const char* what) {
  const TensorFormat& format = matrix.format;
  if (format.scaling == Scaling::kNone) return;
  if (bytes_of(format.format) != 1)
    reject(what, std::string("cannot have a scale: it is ") + name_of(format.format));
  const bool grouped = format.scaling == Scaling::kGroup || format.scaling == Scaling::kBlock;
  if (grouped && format.group <= 0) reject(what, "has groups of no elements");
  if (format.scaling != Scaling::kGroup && !format.rule.codes_use_stored_scale)
    reject(what, "has codes from an unrounded scale, which groups alone can have");
  if (matrix.scale == nullptr && matrix.rows * matrix.cols > 0) reject(what, "comes without its scales");
}

void require_one_pass(const ConstMatrix& matrix, const char* what) {
  require_storable(matrix, what);
  if (!scales_in_one_pass(matrix.format.scaling)) reject(what, "has scales that take a pass of their own");
}

void require_unscaled(const ConstMatrix& matrix, const char* what) {
  if (matrix.format.scaling != Scaling::kNone || bytes_of(matrix.format.format) == 1) {
    reject(what, "must be FP32 or BF16 without scales");
  }
}

void require_bf16(const ConstMatrix& matrix, const char* what) {
  if (matrix.format.scaling != Scaling::kNone || matrix.format.format != Format::kBf16)
    reject(what, "must be BF16");
}

void require_shape(const ConstMatrix& matrix, std::int64_t rows, std::int64_t cols, const char* what) {
  if (matrix.rows == rows && matrix.cols == cols) return;
  reject(what, "is [" + std::to_string(matrix.rows) + ", " + std::to_string(matrix.cols) + "] instead of [" +
                   std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

}  // namespace coat::kernels::cpu
