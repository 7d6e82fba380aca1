#include "tests/gpu/paired.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "worker/core/quant/bf16.h"
#include "worker/core/quant/fp8.h"

namespace coat::gpu_test {
namespace {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

std::int64_t data_bytes(const TensorFormat& format, std::int64_t rows, std::int64_t cols) {
  return format.payload_bytes(rows, cols);
}

std::int64_t scale_bytes(const TensorFormat& format, std::int64_t rows, std::int64_t cols) {
  return format.scaling == Scaling::kNone ? 0
                                          : format.scale_count(rows, cols) * bytes_of(format.scale_format);
}

float decoded(Format format, const std::uint8_t* codes, std::size_t index) {
  switch (format) {
    case Format::kFp32: {
      float value = 0;
      std::memcpy(&value, codes + 4 * index, 4);
      return value;
    }
    case Format::kBf16: {
      std::uint16_t code = 0;
      std::memcpy(&code, codes + 2 * index, 2);
      return decode_bf16(code);
    }
    case Format::kE4M3:
      return decode_e4m3(codes[index]);
    case Format::kE5M2:
      return decode_e5m2(codes[index]);
  }
  return 0;
}

// Compares stored numbers by their bits; `what` names the array.
AssertionResult same_codes(Format format, const std::uint8_t* cpu, const std::uint8_t* cuda,
                           std::size_t count, const std::string& what) {
  const auto bytes = static_cast<std::size_t>(bytes_of(format));
  std::size_t different = 0, first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(cpu + i * bytes, cuda + i * bytes, bytes) == 0) continue;
    if (std::isnan(decoded(format, cpu, i)) && std::isnan(decoded(format, cuda, i))) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return AssertionSuccess();
  return AssertionFailure() << what << ": " << different << " of " << count << " differ; the first at "
                            << first << ": CPU " << decoded(format, cpu, first) << ", CUDA "
                            << decoded(format, cuda, first);
}

template <typename T>
AssertionResult same_elements(Paired<T>& values) {
  const std::vector<T> device = values.from_device();
  std::size_t different = 0, first = 0;
  for (std::size_t i = 0; i < device.size(); ++i) {
    const T cpu = values.host()[i];
    if (std::memcmp(&cpu, &device[i], sizeof(T)) == 0 || (cpu != cpu && device[i] != device[i])) continue;
    if (different++ == 0) first = i;
  }
  if (!values.guards_are_intact()) return AssertionFailure() << "written beyond the array";
  if (different == 0) return AssertionSuccess();
  return AssertionFailure() << different << " of " << device.size() << " differ; the first at " << first
                            << ": CPU " << +values.host()[first] << ", CUDA " << +device[first];
}

}  // namespace

PairedMatrix::PairedMatrix(const TensorFormat& format, std::int64_t rows, std::int64_t cols,
                           std::size_t misalignment)
    : format_(format),
      rows_(rows),
      cols_(cols),
      data_(data_bytes(format, rows, cols), misalignment),
      scale_(scale_bytes(format, rows, cols), misalignment) {}

PairedMatrix::PairedMatrix(const TensorFormat& format, std::int64_t rows, std::int64_t cols,
                           const std::vector<float>& contents, std::size_t misalignment)
    : PairedMatrix(format, rows, cols, misalignment) {
  if (format == kFp32) {
    std::memcpy(data_.host(), contents.data(), static_cast<std::size_t>(data_.count()));
  } else {
    kernels::cpu_kernels().quantize({{contents.data(), nullptr, kFp32, rows, cols}, host(), {}, nullptr}, {});
  }
  data_.upload();
  scale_.upload();
}

Matrix PairedMatrix::host() {
  return {data_.host(), scale_.count() > 0 ? scale_.host() : nullptr, format_, rows_, cols_};
}

Matrix PairedMatrix::device() {
  return {data_.device(), scale_.count() > 0 ? scale_.device() : nullptr, format_, rows_, cols_};
}

std::vector<float> PairedMatrix::decoded_host() {
  std::vector<float> out(static_cast<std::size_t>(rows_ * cols_));
  kernels::cpu_kernels().dequantize(host(), {out.data(), nullptr, kFp32, rows_, cols_}, {});
  return out;
}

std::vector<float> PairedMatrix::decoded_device() {
  std::vector<std::uint8_t> data = data_.from_device(), scale = scale_.from_device();
  std::vector<float> out(static_cast<std::size_t>(rows_ * cols_));
  kernels::cpu_kernels().dequantize({data.data(), scale.data(), format_, rows_, cols_},
                                    {out.data(), nullptr, kFp32, rows_, cols_}, {});
  return out;
}

AssertionResult same_bits(PairedMatrix& matrix) {
  const TensorFormat& format = matrix.format();
  const auto elements = static_cast<std::size_t>(matrix.rows() * matrix.cols());
  const std::vector<std::uint8_t> data = matrix.data().from_device(), scale = matrix.scale().from_device();
  const auto scales = scale.size() / static_cast<std::size_t>(bytes_of(format.scale_format));
  if (!matrix.guards_are_intact()) return AssertionFailure() << "written beyond the matrix";
  if (format.scale_format == ScaleFormat::kE8M0) {
    if (std::memcmp(matrix.scale().host(), scale.data(), scales) != 0) return AssertionFailure() << "scales";
  } else {
    const Format number = format.scale_format == ScaleFormat::kFp32 ? Format::kFp32 : Format::kBf16;
    const AssertionResult same_scales =
        same_codes(number, matrix.scale().host(), scale.data(), scales, "scales");
    if (!same_scales) return same_scales;
  }
  return same_codes(format.format, matrix.data().host(), data.data(), elements, "codes");
}

AssertionResult same_bits(Paired<float>& values) { return same_elements(values); }
AssertionResult same_bits(Paired<double>& values) { return same_elements(values); }
AssertionResult same_bits(Paired<std::uint8_t>& values) { return same_elements(values); }

std::string describe(const TensorFormat& format) {
  std::string text = name_of(format.format);
  if (format.scaling == Scaling::kNone) return text;
  if (format.scaling == Scaling::kTensor) text += " per tensor ";
  if (format.scaling == Scaling::kRow) text += " per row ";
  if (format.scaling == Scaling::kGroup) text += " 1x" + std::to_string(format.group) + " ";
  if (format.scaling == Scaling::kBlock) text += " blocks of " + std::to_string(format.group) + " ";
  return text + name_of(format.scale_format) + (format.rule == ScaleRule{} ? "" : ", reference rule");
}

std::string describe(const Shape& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
}

std::vector<Shape> activation_shapes() {
  return {{1, 5120},   {17, 4096}, {129, 256}, {1000, 5120}, {129, 13824},
          {1000, 688}, {33, 1000}, {5, 77},    {3, 1},       {0, 64}};
}

std::vector<Shape> small_shapes() { return {{1, 256}, {17, 688}, {129, 272}, {7, 77}, {2, 1}, {64, 5120}}; }

}  // namespace coat::gpu_test
