// What backward makes again from what was saved, straight to FP8 codes: one kernel instead of one that
// writes BF16 and one that reads it.
#include <stdexcept>

#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/scaling.h"
#include "worker/core/kernels/cuda/silu_product.cuh"
#include "worker/core/kernels/cuda/transpose.cuh"

namespace coat::kernels::cuda {

// The values of a BF16 matrix that is never stored.
__device__ inline Values through_bf16(const Values& v) { return decode_words(encode_words(v)); }

template <typename X, typename W>
struct NormSource {
  static constexpr int kRowsAtOnce = 4, kBlocks = 5;
  X x;
  W weight;
  const float* rstd;
  struct Pair {
    Fetched<X> x;
    float rstd;
  };
  struct Rows {
    FetchedColumn<X> x;
    const float* rstd;
  };
  __device__ Values any(std::int64_t row, std::int64_t col) const {
    if (row >= x.rows) return Values{};
    return normalized(load(x, row, col), rstd[row], load(weight, 0, col));
  }
  __device__ Rows rows(std::int64_t row0, std::int64_t col) const {
    return {fetched_column(x, row0, col), rstd + row0};
  }
  __device__ Pair fetch(const Rows& rows, int i) const { return {rows.x.fetch(i), rows.rstd[i]}; }
  __device__ Values column(std::int64_t col) const { return load(weight, 0, col); }
  __device__ Values values(const Pair& fetched, const Values& w) const {
    return normalized(decoded<X>(fetched.x), fetched.rstd, w);
  }
  __device__ static Values normalized(Values v, float factor, const Values& w) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * factor * w.x[i];
    return through_bf16(v);
  }
};

template <typename M>
struct ProductSource {
  static constexpr int kRowsAtOnce = 4, kBlocks = 4;
  M gate, up;
  struct Rows {
    FetchedColumn<M> gate, up;
  };
  struct Column {};
  __device__ Values any(std::int64_t row, std::int64_t col) const {
    return decode_words(
        silu_product_words(GateAndUp<M>{cuda::fetch(gate, row, col), cuda::fetch(up, row, col)}));
  }
  __device__ Rows rows(std::int64_t row0, std::int64_t col) const {
    return {fetched_column(gate, row0, col), fetched_column(up, row0, col)};
  }
  __device__ GateAndUp<M> fetch(const Rows& rows, int i) const {
    return {rows.gate.fetch(i), rows.up.fetch(i)};
  }
  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Values values(const GateAndUp<M>& fetched, Column) const {
    return decode_words(silu_product_words(fetched));
  }
};

namespace {

struct Outputs {
  DeviceMatrix rows, transposed;
  // Format and scale of both, with the shape of `rows`.
  DeviceMatrix shape;
};

Outputs outputs_of(const RecomputedOutput& output, const DeviceMatrix& source, const char* operation) {
  Outputs out;
  if (output.rows.data != nullptr) out.rows = cuda::output(output.rows, operation);
  if (output.transposed.data != nullptr) out.transposed = cuda::output(output.transposed, operation);
  const bool by_rows = out.rows.data != nullptr;
  if (!by_rows && out.transposed.data == nullptr)
    throw std::logic_error("recompute: there is nothing to write");
  if (by_rows) require_same_shape(out.rows, source, operation);
  out.shape = by_rows ? out.rows : out.transposed;
  out.shape.rows = source.rows;
  out.shape.cols = source.cols;
  if (out.transposed.data != nullptr) {
    DeviceMatrix turned = out.transposed;
    turned.rows = out.transposed.cols;
    turned.cols = out.transposed.rows;
    require_same_shape(turned, source, operation);
  }
  for (const DeviceMatrix* side : {&out.rows, &out.transposed}) {
    if (side->data != nullptr && side->scaling != Scaling::kTensor)
      throw std::logic_error("recompute: one scale for the tensor");
  }
  return out;
}

// `typed` reads the storage of the recipe in whole chunks where it `fits`, `asking` any.
template <typename Typed, typename Asking>
void run(const Outputs& out, const float* amax, bool fits, const Typed& typed, const Asking& asking,
         const char* operation, cudaStream_t stream) {
  if (fits && transposes_in_blocks(out.rows, out.transposed))
    return transpose_blocks(typed, out.rows, out.transposed, amax, operation, stream);
  const bool by_rows = out.rows.data != nullptr;
  store_tensor_scale(amax, out.shape, by_rows ? out.transposed : DeviceMatrix{}, operation, stream);
  transpose_any(asking, out.shape, out.rows, out.transposed, ToNearest{}, operation, stream);
}

}  // namespace

void rms_norm_recompute(const RmsNormRecomputeArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_recompute";
  const DeviceMatrix x = input(args.x, kName);
  if (x.rows == 0 || x.cols == 0) return;
  const Outputs out = outputs_of(args.output, x, kName);
  const DeviceMatrix weight =
      input({args.weight, nullptr, {Format::kFp32, Scaling::kNone}, 1, x.cols}, kName);
  run(out, args.amax, is_grouped(x) && is_fp32(weight),
      NormSource<GroupedE4M3, Fp32Matrix>{GroupedE4M3(x), Fp32Matrix(weight), args.rstd},
      NormSource<DeviceMatrix, DeviceMatrix>{x, weight, args.rstd}, kName, stream);
}

void swiglu_recompute(const SwigluRecomputeArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "swiglu_recompute";
  const DeviceMatrix gate = input(args.gate, kName), up = input(args.up, kName);
  require_same_shape(gate, up, kName);
  if (gate.rows == 0 || gate.cols == 0) return;
  const Outputs out = outputs_of(args.output, gate, kName);
  run(out, args.amax, is_grouped(gate) && is_grouped(up),
      ProductSource<GroupedE4M3>{GroupedE4M3(gate), GroupedE4M3(up)}, ProductSource<DeviceMatrix>{gate, up},
      kName, stream);
}

}  // namespace coat::kernels::cuda
