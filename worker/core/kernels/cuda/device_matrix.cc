#include "worker/core/kernels/cuda/device_matrix.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kBlocksPerMultiprocessor = 8;

[[noreturn]] void wrong(const char* operation, const std::string& what) {
  throw std::logic_error(std::string(operation) + ": " + what);
}

DeviceMatrix describe(const void* data, const void* scale, const TensorFormat& format, std::int64_t rows,
                      std::int64_t cols, const char* operation) {
  if (rows < 0 || cols < 0) wrong(operation, "negative size");
  const bool empty = rows == 0 || cols == 0;
  if (data == nullptr && !empty) wrong(operation, "a matrix without data");
  if (format.scaling != Scaling::kNone && scale == nullptr && !empty)
    wrong(operation, "a scaled matrix without scales");
  const bool grouped = format.scaling == Scaling::kGroup || format.scaling == Scaling::kBlock;
  if (grouped && format.group < 1) wrong(operation, "a group size below 1");
  if (format.scaling != Scaling::kGroup && !format.rule.codes_use_stored_scale) {
    wrong(operation, "codes from an unrounded scale, which groups alone can have");
  }
  if (format.scaling != Scaling::kNone && bytes_of(format.format) != 1) {
    wrong(operation, std::string(name_of(format.format)) + " cannot have a scale");
  }
  DeviceMatrix view;
  view.data = const_cast<void*>(data);
  view.scale = const_cast<void*>(scale);
  view.format = format.format;
  view.scaling = format.scaling;
  view.scale_format = format.scale_format;
  view.rule = format.rule;
  view.group = std::max(format.group, 1);
  view.groups_per_row = format.groups_per_row(cols);
  view.rows_per_scale = format.rows_per_scale();
  view.rows = rows;
  view.cols = cols;
  view.largest = max_value(format.format);
  const auto chunk_bytes = static_cast<std::uintptr_t>(std::min(16, kChunk * bytes_of(format.format)));
  view.whole_chunks = cols % kChunk == 0 && reinterpret_cast<std::uintptr_t>(data) % chunk_bytes == 0;
  return view;
}

bool is_plain_bf16(const TensorFormat& format) {
  return format.format == Format::kBf16 && format.scaling == Scaling::kNone;
}

}  // namespace

DeviceMatrix input(const ConstMatrix& matrix, const char* operation) {
  return describe(matrix.data, matrix.scale, matrix.format, matrix.rows, matrix.cols, operation);
}

DeviceMatrix output(const Matrix& matrix, const char* operation) {
  const TensorFormat& format = matrix.format;
  const bool group_fits = format.group >= kChunk && format.group <= 32 * kChunk &&
                          std::has_single_bit(static_cast<unsigned>(format.group));
  if (format.scaling == Scaling::kGroup && !group_fits) {
    throw UnsupportedError(std::string(operation) + ": groups of " + std::to_string(format.group) +
                           " elements have no CUDA version; use 8, 16, 32, 64, 128 or 256");
  }
  if (format.scaling == Scaling::kBlock && format.group % kChunk != 0) {
    throw UnsupportedError(std::string(operation) + ": blocks of " + std::to_string(format.group) +
                           " rows and columns have no CUDA version; use a multiple of 8");
  }
  return describe(matrix.data, matrix.scale, format, matrix.rows, matrix.cols, operation);
}

DeviceMatrix one_pass_output(const Matrix& matrix, const char* operation) {
  if (!scales_in_one_pass(matrix.format.scaling)) wrong(operation, "scales that take a pass of their own");
  return output(matrix, operation);
}

DeviceMatrix bf16_input(const ConstMatrix& matrix, const char* operation) {
  if (!is_plain_bf16(matrix.format)) wrong(operation, "expected a BF16 matrix without scales");
  return input(matrix, operation);
}

DeviceMatrix bf16_output(const Matrix& matrix, const char* operation) {
  if (!is_plain_bf16(matrix.format)) wrong(operation, "expected a BF16 matrix without scales");
  return output(matrix, operation);
}

void require_same_shape(const DeviceMatrix& a, const DeviceMatrix& b, const char* operation) {
  if (a.rows == b.rows && a.cols == b.cols) return;
  wrong(operation, "shapes differ: [" + std::to_string(a.rows) + ", " + std::to_string(a.cols) + "] and [" +
                       std::to_string(b.rows) + ", " + std::to_string(b.cols) + "]");
}

Cover cover(std::int64_t rows, std::int64_t cols, const DeviceMatrix& quantized) {
  Cover cover;
  cover.rows = rows;
  if (quantized.data != nullptr && quantized.scaling == Scaling::kGroup) {
    cover.lanes_per_group = quantized.group / kChunk;
  }
  const std::int64_t chunks = (cols + kChunk - 1) / kChunk;
  const std::int64_t lanes = cover.lanes_per_group;
  cover.chunks_per_row = (chunks + lanes - 1) / lanes * lanes;
  return cover;
}

int blocks_for(std::int64_t work, int per_block) {
  const std::int64_t wanted = (work + per_block - 1) / per_block;
  const std::int64_t most = std::int64_t{DeviceState::current().multiprocessors()} * kBlocksPerMultiprocessor;
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, most));
}

int resident_blocks(const void* kernel, int threads, std::int64_t most) {
  int each = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0), "look at a kernel");
  const std::int64_t all = std::int64_t{DeviceState::current().multiprocessors()} * std::max(each, 1);
  return static_cast<int>(std::clamp<std::int64_t>(most, 1, all));
}

}  // namespace coat::kernels::cuda
