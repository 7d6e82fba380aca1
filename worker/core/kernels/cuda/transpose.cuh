// Codes written row-major and transposed in one pass, from a matrix or from values that are computed on the
// way. Device code only.
//
// A Source gives the values of 8 neighbouring elements of a row: any(row, col) of any place, 0 beyond the
// edges. Of full chunks inside, rows(row0, col) says where the chunk of a row and those below it lie,
// fetch(rows, i) starts the loads of row0 + i, kRowsAtOnce rows before the first is waited for, and
// values(fetched, column(col)) are made later, where column(col) is what all rows share. kBlocks: how many
// blocks a multiprocessor should hold.
#pragma once

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/matrix_io.cuh"
#include "worker/core/quant/philox.h"

namespace coat::kernels::cuda {

inline constexpr int kTransposeThreads = 256;
inline constexpr int kTile = 64;  // rows and cols of the squares that are transposed
inline constexpr int kTileChunks = kTile / kChunk;
inline constexpr int kBlockSide = 16 * kChunk;  // the same where rows and cols are whole chunks

template <typename M>
struct MatrixSource {
  static constexpr int kRowsAtOnce = kChunk, kBlocks = 1;
  M m;
  __device__ Values any(std::int64_t row, std::int64_t col) const { return load(m, row, col); }
  struct Rows {
    std::int64_t index, stride;
  };
  __device__ Rows rows(std::int64_t row0, std::int64_t col) const { return {row0 * m.cols + col, m.cols}; }
  __device__ Values fetch(const Rows& rows, int i) const {
    return load_typed(m, rows.index + i * rows.stride);
  }
  struct Column {};
  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Values values(const Values& fetched, Column) const { return fetched; }
};

struct ToNearest {
  __device__ Codes operator()(Format format, const Values& v, float scale, std::int64_t) const {
    return encode_scaled(format, v, scale);
  }
};

// FP8 alone. Element `index` takes its number.
struct Stochastically {
  PhiloxStream random;
  __device__ Codes operator()(Format format, const Values& v, float scale, std::int64_t index) const {
    const float inverse = __frcp_rn(scale);
    Codes codes;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float uniform = philox_uniform(random.word(static_cast<std::uint64_t>(index + i)));
      codes.x[i] = format == Format::kE4M3 ? encode_fp8_stochastic<E4M3Layout>(v.x[i] * inverse, uniform)
                                           : encode_fp8_stochastic<E5M2Layout>(v.x[i] * inverse, uniform);
    }
    return codes;
  }
};

// Codes of one square of `shape`, which has their format and scales, to those of `out` and `transposed` that
// have data. Not for scales of rows.
template <typename Source, typename Round>
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(Source source, DeviceMatrix shape, DeviceMatrix out, DeviceMatrix transposed,
                     Round round) {
  __shared__ std::uint32_t square[kTile][kTile + 1];
  const std::int64_t squares_across = (shape.cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / squares_across * kTile, col0 = blockIdx.x % squares_across * kTile;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileChunks; i += kTransposeThreads) {
    const int row = i / kTileChunks, col = i % kTileChunks * kChunk;
    const bool inside = row0 + row < shape.rows && col0 + col < shape.cols;
    const bool scaled = inside && shape.scaling != Scaling::kNone;
    const float scale = scaled ? scale_at(shape, scale_index(shape, row0 + row, col0 + col)) : 1.0f;
    const Codes codes = round(shape.format, source.any(row0 + row, col0 + col), scale,
                              (row0 + row) * shape.cols + col0 + col);
    if (out.data != nullptr && inside) store_codes(out, row0 + row, col0 + col, codes);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) square[row][col + j] = codes.x[j];
  }
  if (transposed.data == nullptr) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileChunks; i += kTransposeThreads) {
    const int col = i / kTileChunks, row = i % kTileChunks * kChunk;
    Codes codes;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) codes.x[j] = square[row + j][col];
    if (col0 + col < transposed.rows) store_codes(transposed, col0 + col, row0 + row, codes);
  }
}

template <typename Source, typename Round>
void transpose_any(const Source& source, const DeviceMatrix& shape, const DeviceMatrix& out,
                   const DeviceMatrix& transposed, Round round, const char* operation, cudaStream_t stream) {
  const std::int64_t squares = (shape.rows + kTile - 1) / kTile * ((shape.cols + kTile - 1) / kTile);
  transpose_kernel<<<static_cast<unsigned>(squares), kTransposeThreads, 0, stream>>>(source, shape, out,
                                                                                     transposed, round);
  check_launch(operation);
}

// 4 x 4 bytes, turned: byte j of word i becomes byte i of word j.
__device__ inline void transpose_words(std::uint32_t (&w)[4]) {
  const std::uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), low23 = __byte_perm(w[2], w[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(w[0], w[1], 0x7362), high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

// Codes row-major (out.data == nullptr: not wanted) and transposed, 8 x 8 of them a thread in registers: 8
// loads of 16 or 32 bytes are in flight at once. The transposed ones go through shared memory, so that whole
// lines are written: 8 rows of a column are one place of 16 there, at (place xor the column's chunk), which
// no two lanes of a half-warp share. Rows and cols are multiples of 8, both outputs have the one scale for
// values up to *amax, which the first block stores.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kTransposeThreads, Source::kBlocks)
    transpose_blocks_kernel(Source source, DeviceMatrix out, DeviceMatrix transposed, const float* amax) {
  constexpr int kPlaces = kBlockSide / kChunk;
  __shared__ uint2 square[kBlockSide][kPlaces];
  const std::int64_t rows = transposed.cols, cols = transposed.rows;
  const int row_chunk = static_cast<int>(threadIdx.x) / kPlaces,
            col_chunk = static_cast<int>(threadIdx.x) % kPlaces;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kBlockSide,
                     first_col = std::int64_t{blockIdx.x} * kBlockSide;
  const std::int64_t row0 = first_row + row_chunk * kChunk, col = first_col + col_chunk * kChunk;
  const float scale = scale_from_amax(*amax, max_of(kFormat), transposed.rule.added);
  const float inverse = __frcp_rn(stored_scale(scale, transposed.scale_format));
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    write_scale(transposed, 0, scale);
    if (out.data != nullptr) write_scale(out, 0, scale);
  }
  if (row0 < rows && col < cols) {
    const auto rows_here = source.rows(row0, col);
    const auto column = source.column(col);
    constexpr int kAtOnce = Source::kRowsAtOnce;
    decltype(source.fetch(rows_here, 0)) fetched[kAtOnce];
    std::uint32_t words[2][2][4];  // [half of the cols][half of the rows][row]
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i % kAtOnce == 0) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) fetched[j] = source.fetch(rows_here, i + j);
      }
      const uint2 codes = encode_bytes<kFormat>(times(source.values(fetched[i % kAtOnce], column), inverse));
      if (out.data != nullptr) {
        *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(out.data) + (row0 + i) * cols + col) = codes;
      }
      words[0][i / 4][i % 4] = codes.x;
      words[1][i / 4][i % 4] = codes.y;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      transpose_words(words[half][0]);
      transpose_words(words[half][1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        square[col_chunk * kChunk + 4 * half + j][row_chunk ^ col_chunk] =
            make_uint2(words[half][0][j], words[half][1][j]);
      }
    }
  }
  __syncthreads();
  const std::int64_t row = first_row + col_chunk * kChunk;  // 16 lanes write one line
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const int c = i * kPlaces + row_chunk;
    if (first_col + c >= cols || row >= rows) continue;
    *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(transposed.data) + (first_col + c) * rows + row) =
        square[c][col_chunk ^ (c / kChunk)];
  }
}

// Whether transpose_blocks takes these: FP8 with one scale, rows and cols of whole chunks.
inline bool transposes_in_blocks(const DeviceMatrix& out, const DeviceMatrix& transposed) {
  if (transposed.data == nullptr || transposed.scaling != Scaling::kTensor) return false;
  const bool whole = transposed.whole_chunks && transposed.rows % kChunk == 0;
  return whole && (out.data == nullptr || out.whole_chunks) && transposed.cols <= 65535LL * kBlockSide;
}

template <typename Source>
void transpose_blocks(const Source& source, const DeviceMatrix& out, const DeviceMatrix& transposed,
                      const float* amax, const char* operation, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((transposed.rows + kBlockSide - 1) / kBlockSide),
                  static_cast<unsigned>((transposed.cols + kBlockSide - 1) / kBlockSide));
  if (transposed.format == Format::kE4M3) {
    transpose_blocks_kernel<Format::kE4M3>
        <<<grid, kTransposeThreads, 0, stream>>>(source, out, transposed, amax);
  } else {
    transpose_blocks_kernel<Format::kE5M2>
        <<<grid, kTransposeThreads, 0, stream>>>(source, out, transposed, amax);
  }
  check_launch(operation);
}

}  // namespace coat::kernels::cuda
