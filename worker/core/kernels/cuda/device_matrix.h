// Matrices as kernels take them: a ConstMatrix or Matrix with what device code needs precomputed.
#pragma once

#include <cstdint>

#include "worker/core/quant/matrix.h"

namespace coat::kernels::cuda {

// Kernels walk a matrix in chunks of 8 neighbouring elements of a row: at most 16 bytes of BF16.
inline constexpr int kChunk = 8;

struct DeviceMatrix {
  void* data = nullptr;
  void* scale = nullptr;
  Format format = Format::kBf16;
  Scaling scaling = Scaling::kNone;
  ScaleFormat scale_format = ScaleFormat::kFp32;
  ScaleRule rule;
  int group = 1;
  std::int64_t groups_per_row = 0;
  std::int64_t rows_per_scale = 1;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float largest = 0;          // the format's largest finite value
  bool whole_chunks = false;  // every chunk is full and aligned for one vector access
};

// std::logic_error where the pointers do not fit the format. `operation` names the caller in errors.
DeviceMatrix input(const ConstMatrix& matrix, const char* operation);

// An output: no scaling; scales of the tensor, of rows or of blocks, stored before the kernel runs; or groups
// of 8, 16, ... 256 elements, whose scale is found inside one warp. UnsupportedError for other groups.
DeviceMatrix output(const Matrix& matrix, const char* operation);

// An output whose scales, if any, its kernel finds; std::logic_error for others.
DeviceMatrix one_pass_output(const Matrix& matrix, const char* operation);

// std::logic_error unless the matrix is BF16 without scales.
DeviceMatrix bf16_input(const ConstMatrix& matrix, const char* operation);
DeviceMatrix bf16_output(const Matrix& matrix, const char* operation);

// std::logic_error unless both have the same rows and cols.
void require_same_shape(const DeviceMatrix& a, const DeviceMatrix& b, const char* operation);

// How a kernel covers a matrix: `chunks` of each row, rounded up so that no group straddles two warps.
struct Cover {
  std::int64_t rows = 0;
  std::int64_t chunks_per_row = 1;
  int lanes_per_group = 1;
  constexpr std::int64_t total() const { return rows * chunks_per_row; }
};
// `quantized` may have data == nullptr.
Cover cover(std::int64_t rows, std::int64_t cols, const DeviceMatrix& quantized);

// Blocks for `work` items of `per_block` each, at most what keeps the device busy: kernels stride over the
// rest.
int blocks_for(std::int64_t work, int per_block);

// Blocks of `kernel` that run at once on the whole device, at most `most`: a kernel that strides over its
// work with more would leave multiprocessors idle at its end.
int resident_blocks(const void* kernel, int threads, std::int64_t most);

}  // namespace coat::kernels::cuda
