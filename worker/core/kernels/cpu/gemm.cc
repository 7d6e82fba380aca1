// Products through ATen's single-precision one, on operands decoded to FP32. The result is cut into blocks of
// fixed size that threads take one by one, so that neither their number nor the library's own threading
// changes a bit. The library is asked for plain products in buffers of one alignment: with a factor, it
// multiplies that in where its own threading decides.
#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

constexpr std::int64_t kBlockRows = 128;
constexpr std::int64_t kBlockCols = 256;

constexpr std::int64_t kLine = 16;
struct alignas(64) CacheLine {
  float value[kLine];
};

// An operand as FP32 without its kTensor scale; `scratch` holds it unless it is FP32 anyway.
struct Operand {
  at::Tensor scratch;
  const float* data = nullptr;
  double scale = 1.0;
  std::int64_t outer = 0;   // M or N
  std::int64_t summed = 0;  // K
  std::int64_t outer_stride = 0, summed_stride = 0;
};

void decode_operand(const ConstMatrix& matrix, float* out) {
  const TileGrid grid(matrix.rows, matrix.cols, {matrix.format});
  const bool per_tensor = matrix.format.scaling == Scaling::kTensor;
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      float* target = out + tile.row * matrix.cols + tile.col;
      if (per_tensor) {
        decode_codes(matrix, tile.row, tile.col, tile.n, target);
      } else {
        decode_span(matrix, tile.row, tile.col, tile.n, target);
      }
    }
  });
}

Operand make_operand(const ConstMatrix& matrix, Layout layout) {
  Operand operand;
  const bool k_major = layout == Layout::kKMajor;
  operand.outer = k_major ? matrix.rows : matrix.cols;
  operand.summed = k_major ? matrix.cols : matrix.rows;
  operand.outer_stride = k_major ? matrix.cols : 1;
  operand.summed_stride = k_major ? 1 : matrix.cols;
  if (matrix.format.format == Format::kFp32) {
    operand.data = static_cast<const float*>(matrix.data);
    return operand;
  }
  operand.scratch = at::empty({matrix.rows * matrix.cols}, at::kFloat);
  decode_operand(matrix, operand.scratch.mutable_data_ptr<float>());
  operand.data = operand.scratch.const_data_ptr<float>();
  if (matrix.format.scaling == Scaling::kTensor) operand.scale = static_cast<double>(load_scale(matrix, 0));
  return operand;
}

// [count, K] of the operand from `first` on.
at::Tensor slice(const Operand& operand, std::int64_t first, std::int64_t count) {
  float* start = const_cast<float*>(operand.data) + first * operand.outer_stride;
  return at::from_blob(start, {count, operand.summed}, {operand.outer_stride, operand.summed_stride},
                       at::kFloat);
}

struct Block {
  std::int64_t row, rows, col, cols;
};

// values[rows, cols] = a . b^T, without the operands' scales
void multiply_block(const Operand& a, const Operand& b, const Block& block, float* values) {
  at::Tensor out = at::from_blob(values, {block.rows, block.cols}, at::kFloat);
  const at::Tensor left = slice(a, block.row, block.rows);
  const at::Tensor right = slice(b, block.col, block.cols).t();
  at::addmm_out(out, out, left, right, 0.0);
}

// One block of the product times `scale`, row by row.
void store_block(const GemmArgs& args, const Block& block, float scale, float* values,
                 std::vector<float>& previous) {
  const Matrix& out = args.out;
  for (std::int64_t i = 0; i < block.rows; ++i) {
    float* __restrict row = values + i * block.cols;
    for (std::int64_t j = 0; j < block.cols; ++j) row[j] *= scale;
    if (args.round_product) round_to_bf16(row, block.cols);
    if (args.accumulate) {
      decode_span(out, block.row + i, block.col, block.cols, previous.data());
      for (std::int64_t j = 0; j < block.cols; ++j) row[j] += previous[static_cast<std::size_t>(j)];
    }
    encode_span(row, out, block.row + i, block.col, block.cols);
  }
}

void check(const GemmArgs& args, const Operand& a, const Operand& b) {
  require_shape(args.out, a.outer, b.outer, "gemm: out");
  if (a.summed != b.summed) {
    throw std::logic_error("gemm: a sums over " + std::to_string(a.summed) + " and b over " +
                           std::to_string(b.summed));
  }
  if ((args.accumulate || args.round_product) && bytes_of(args.out.format.format) == 1) {
    throw std::logic_error("gemm: only FP32 and BF16 outputs accumulate or are rounded twice");
  }
}

}  // namespace

void gemm(const GemmArgs& args) {
  require_storable(args.a, "gemm: a");
  require_storable(args.b, "gemm: b");
  require_one_pass(args.out, "gemm: out");
  const Operand a = make_operand(args.a, args.a_layout);
  const Operand b = make_operand(args.b, args.b_layout);
  check(args, a, b);
  if (args.out.rows == 0 || args.out.cols == 0) return;
  const auto scale = static_cast<float>(a.scale * b.scale);
  const bool grouped = args.out.format.scaling == Scaling::kGroup;
  const std::int64_t unit = grouped ? args.out.format.group : 1;
  const std::int64_t block_cols = (kBlockCols + unit - 1) / unit * unit;
  const std::int64_t blocks_across = (args.out.cols + block_cols - 1) / block_cols;
  const std::int64_t blocks_down = (args.out.rows + kBlockRows - 1) / kBlockRows;
  at::parallel_for(0, blocks_down * blocks_across, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<CacheLine> lines(static_cast<std::size_t>((kBlockRows * block_cols + kLine - 1) / kLine));
    float* values = lines.front().value;
    std::vector<float> previous(args.accumulate ? static_cast<std::size_t>(block_cols) : 0);
    for (std::int64_t index = begin; index < end; ++index) {
      Block block{index / blocks_across * kBlockRows, 0, index % blocks_across * block_cols, 0};
      block.rows = std::min(kBlockRows, args.out.rows - block.row);
      block.cols = std::min(block_cols, args.out.cols - block.col);
      multiply_block(a, b, block, values);
      store_block(args, block, scale, values, previous);
    }
  });
}

}  // namespace coat::kernels::cpu
