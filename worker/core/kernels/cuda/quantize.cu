// Format conversions and maxima.
#include <stdexcept>
#include <type_traits>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;  // rows and cols of the squares that are transposed
constexpr int kTileChunks = kTile / kChunk;

template <typename Span, typename In>
__global__ void __launch_bounds__(kThreads) amax_kernel(In in, Span cover, float* out) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    largest = max(largest, largest_magnitude(load(in, row, col)));
  });
  join_amax(out, largest);
}

__global__ void tensor_scale_kernel(const float* amax, DeviceMatrix out, DeviceMatrix twin) {
  const float scale = stored_scale(scale_from_amax(*amax, out.largest), out.scale_format);
  write_scale(out, 0, scale);
  if (twin.data != nullptr) write_scale(twin, 0, scale);
}

template <typename Span, typename In, typename Out>
__global__ void __launch_bounds__(kThreads) convert_kernel(In in, Out out, Span cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    store(out, row, col, load(in, row, col), cover.lanes_per_group);
  });
}

// Codes of one square, row-major and transposed. Not for groups. Threads: kTile * kTileChunks / 2.
__global__ void __launch_bounds__(kThreads)
    convert_and_transpose_kernel(DeviceMatrix in, DeviceMatrix out, DeviceMatrix transposed) {
  __shared__ std::uint32_t square[kTile][kTile + 1];
  const std::int64_t squares_across = (in.cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / squares_across * kTile, col0 = blockIdx.x % squares_across * kTile;
  const float scale = out.scaling == Scaling::kTensor ? scale_at(out, 0) : 1.0f;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileChunks; i += kThreads) {
    const int row = i / kTileChunks, col = i % kTileChunks * kChunk;
    const Values v = load(in, row0 + row, col0 + col);
    const Codes codes =
        out.scaling == Scaling::kTensor ? encode_scaled(out.format, v, scale) : encode(out.format, v);
    if (row0 + row < out.rows) store_codes(out, row0 + row, col0 + col, codes);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) square[row][col + j] = codes.x[j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileChunks; i += kThreads) {
    const int col = i / kTileChunks, row = i % kTileChunks * kChunk;
    Codes codes;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) codes.x[j] = square[row + j][col];
    if (col0 + col < transposed.rows) store_codes(transposed, col0 + col, row0 + row, codes);
  }
}

// 4 x 4 bytes, turned: byte j of word i becomes byte i of word j.
__device__ void transpose_words(std::uint32_t (&w)[4]) {
  const std::uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), low23 = __byte_perm(w[2], w[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(w[0], w[1], 0x7362), high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

constexpr int kBlockSide = 16 * kChunk;  // rows and cols of a thread block's square

// Codes row-major and transposed, 8 x 8 of them a thread in registers: 8 loads of 16 or 32 bytes are in
// flight at once. The transposed ones go through shared memory, so that whole lines are written: 8 rows of a
// column are one place of 16 there, at (place xor the column's chunk), which no two lanes of a half-warp
// share. Rows and cols are multiples of 8.
template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    convert_and_transpose_blocks_kernel(In in, Out out, Out transposed) {
  constexpr int kPlaces = kBlockSide / kChunk;
  __shared__ uint2 square[kBlockSide][kPlaces];
  const int row_chunk = static_cast<int>(threadIdx.x) / kPlaces,
            col_chunk = static_cast<int>(threadIdx.x) % kPlaces;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kBlockSide,
                     first_col = std::int64_t{blockIdx.x} * kBlockSide;
  const std::int64_t row0 = first_row + row_chunk * kChunk, col = first_col + col_chunk * kChunk;
  const float inverse = __frcp_rn(scale_at(out, 0));
  if (row0 < in.rows && col < in.cols) {
    Values v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = load_typed(in, (row0 + i) * in.cols + col);
    std::uint32_t words[2][2][4];  // [half of the cols][half of the rows][row]
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const uint2 codes = encode_bytes<Out::format>(times(v[i], inverse));
      *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(out.data) + (row0 + i) * out.cols + col) = codes;
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
    if (first_col + c >= transposed.rows || row >= transposed.cols) continue;
    *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(transposed.data) +
                              (first_col + c) * transposed.cols + row) = square[c][col_chunk ^ (c / kChunk)];
  }
}

// Calls run(typed matrix) for the storage that `m` has, as one row; false where no type fits.
template <typename... Types, typename Run>
bool with_type(const DeviceMatrix& m, Run run) {
  const auto try_type = [&]<typename Type>(std::type_identity<Type>) {
    if (!fits(m, Type::format, Type::scaling)) return false;
    run(Type(as_one_row(m)));
    return true;
  };
  return (try_type(std::type_identity<Types>{}) || ...);
}

void convert(const DeviceMatrix& in, const DeviceMatrix& out, const char* operation, cudaStream_t stream) {
  if (in.rows == 0 || in.cols == 0) return;
  const Cover whole = cover(in.rows, in.cols, out);
  const int blocks = blocks_for(whole.total(), kThreads);
  bool done = false;
  with_type<Bf16Matrix, Fp32Matrix, GroupedE4M3>(in, [&](const auto& typed_in) {
    done = with_type<Bf16Matrix, Fp32Matrix, GroupedE4M3, TensorE4M3, TensorE5M2>(
        out, [&](const auto& typed_out) {
          convert_kernel<<<blocks, kThreads, 0, stream>>>(typed_in, typed_out, one_row(in));
        });
  });
  if (!done) convert_kernel<<<blocks, kThreads, 0, stream>>>(in, out, whole);
  check_launch(operation);
}

// FP8 with one scale from BF16 or FP32, in whole squares of 8; false where the matrices are not such.
bool convert_and_transpose_blocks(const DeviceMatrix& in, const DeviceMatrix& out,
                                  const DeviceMatrix& transposed, cudaStream_t stream) {
  if (in.rows % kChunk != 0 || !transposed.whole_chunks || in.rows > 65535LL * kBlockSide) return false;
  const dim3 grid(static_cast<unsigned>((in.cols + kBlockSide - 1) / kBlockSide),
                  static_cast<unsigned>((in.rows + kBlockSide - 1) / kBlockSide));
  bool done = false;
  const auto run = [&]<typename In, typename Out>(std::type_identity<In>, std::type_identity<Out>) {
    if (done || !fits(in, In::format, In::scaling) || !fits(out, Out::format, Out::scaling)) return;
    convert_and_transpose_blocks_kernel<<<grid, kThreads, 0, stream>>>(In(in), Out(out), Out(transposed));
    check_launch("quantize");
    done = true;
  };
  run(std::type_identity<Bf16Matrix>{}, std::type_identity<TensorE4M3>{});
  run(std::type_identity<Bf16Matrix>{}, std::type_identity<TensorE5M2>{});
  run(std::type_identity<Fp32Matrix>{}, std::type_identity<TensorE4M3>{});
  run(std::type_identity<Fp32Matrix>{}, std::type_identity<TensorE5M2>{});
  return done;
}

void find_amax(const DeviceMatrix& in, float* out, const char* operation, cudaStream_t stream) {
  clear_amax(out, operation, stream);
  if (in.rows == 0 || in.cols == 0) return;
  const Cover whole = cover(in.rows, in.cols, {});
  const int blocks = blocks_for(whole.total(), kThreads);
  const bool done = with_type<Bf16Matrix, Fp32Matrix>(
      in, [&](const auto& typed) { amax_kernel<<<blocks, kThreads, 0, stream>>>(typed, one_row(in), out); });
  if (!done) amax_kernel<<<blocks, kThreads, 0, stream>>>(in, whole, out);
  check_launch(operation);
}

void require_unscaled(const DeviceMatrix& matrix, const char* operation) {
  if (matrix.scaling != Scaling::kNone || bytes_of(matrix.format) == 1) {
    throw std::logic_error(std::string(operation) + ": one side must be FP32 or BF16 without scales");
  }
}

void require_transposable(const QuantizeArgs& args, const DeviceMatrix& in, const DeviceMatrix& transposed) {
  if (args.out_transposed.format != args.out.format) {
    throw std::logic_error("quantize: out_transposed must have the format of out");
  }
  if (args.out.format.scaling == Scaling::kGroup) {
    throw std::logic_error(
        "quantize: codes with a scale per group of a row cannot be transposed (COAT.md 5.5 fact 25)");
  }
  if (transposed.rows != in.cols || transposed.cols != in.rows) {
    throw std::logic_error("quantize: out_transposed must be [cols, rows]");
  }
}

}  // namespace

void clear_amax(float* amax, const char* operation, cudaStream_t stream) {
  if (amax != nullptr) check(cudaMemsetAsync(amax, 0, sizeof(float), stream), operation);
}

void store_tensor_scale(const float* amax, const DeviceMatrix& out, const DeviceMatrix& twin,
                        const char* operation, cudaStream_t stream) {
  tensor_scale_kernel<<<1, 1, 0, stream>>>(amax, out, twin);
  check_launch(operation);
}

void amax(const ConstMatrix& in, float* out, cudaStream_t stream) {
  find_amax(input(in, "amax"), out, "amax", stream);
}

void quantize(const QuantizeArgs& args, cudaStream_t stream) {
  const DeviceMatrix in = input(args.in, "quantize"), out = output(args.out, "quantize");
  const bool transpose = args.out_transposed.data != nullptr;
  const DeviceMatrix transposed = transpose ? output(args.out_transposed, "quantize") : DeviceMatrix{};
  require_unscaled(in, "quantize");
  require_same_shape(in, out, "quantize");
  if (transpose) require_transposable(args, in, transposed);
  if (in.rows == 0 || in.cols == 0) return;
  if (out.scaling == Scaling::kTensor) {
    const float* largest = args.amax;
    if (largest == nullptr) {
      float* found = DeviceState::current().maximum();
      find_amax(in, found, "quantize", stream);
      largest = found;
    }
    store_tensor_scale(largest, out, transposed, "quantize", stream);
  }
  if (!transpose) return convert(in, out, "quantize", stream);
  if (convert_and_transpose_blocks(in, out, transposed, stream)) return;
  const std::int64_t squares = (in.rows + kTile - 1) / kTile * ((in.cols + kTile - 1) / kTile);
  convert_and_transpose_kernel<<<static_cast<unsigned>(squares), kThreads, 0, stream>>>(in, out, transposed);
  check_launch("quantize");
}

void dequantize(const ConstMatrix& in, const Matrix& out, cudaStream_t stream) {
  const DeviceMatrix from = input(in, "dequantize"), to = output(out, "dequantize");
  require_unscaled(to, "dequantize");
  require_same_shape(from, to, "dequantize");
  convert(from, to, "dequantize", stream);
}

}  // namespace coat::kernels::cuda
