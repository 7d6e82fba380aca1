#include <stdexcept>
#include <type_traits>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"
#include "worker/core/kernels/cuda/silu_product.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kForwardAtOnce = 4, kBackwardAtOnce = 2;

__device__ Values product(Values a, const Values& b) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) a.x[i] = a.x[i] * b.x[i];
  return a;
}

template <typename M>
__device__ Values silu(const Fetched<M>& gate) {
  const Values v = decoded<M>(gate);
  return product(v, sigmoids(v, is_within(gate, v, kModerate)));
}

__global__ void __launch_bounds__(kChunkThreads)
    silu_amax_kernel(DeviceMatrix gate, Cover cover, float* amax) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    largest = max(largest, largest_magnitude(silu<DeviceMatrix>(fetch(gate, row, col))));
  });
  join_amax(amax, largest);
}

// Cover or OneRow; inputs of one type, BF16 results of another, and what is kept of silu(gate).
template <typename Span, typename In, typename Out, typename Kept>
__global__ void __launch_bounds__(kChunkThreads)
    forward_kernel(In gate, In up, Out out, Kept activation, bool product_reads_activation, Span span,
                   float* amax) {
  std::uint32_t halves = 0;
  for_chunks_at_once<kForwardAtOnce>(
      span,
      [&](std::int64_t row, std::int64_t col, int further) {
        return GateAndUp<In>{fetch(gate, row, col, further), fetch(up, row, col, further)};
      },
      [&](std::int64_t row, std::int64_t col, const GateAndUp<In>& in, auto inside) {
        constexpr bool kInside = decltype(inside)::value;
        if constexpr (kCanExist<Kept>) {
          Values active = silu<In>(in.gate);
          if (activation.data != nullptr) store(activation, row, col, active, span.lanes_per_group);
          if (product_reads_activation) {
            __syncwarp();  // another lane may have stored the group's scale
            active = load(activation, row, col);
          }
          store_rounded<kInside>(out, row, col, product(active, decoded<In>(in.up)), halves);
        } else {
          store_words<kInside>(out, row, col, silu_product_words(in), halves);
        }
      });
  join_amax(amax, magnitude_of_halves(halves));
}

template <typename In, typename Out, typename Kept>
struct BackwardMatrices {
  In gate, up;
  Out dproduct;
  Kept activation;
  Out dgate, dup;
  struct Chunks {
    GateAndUp<In> in;
    Fetched<Out> dproduct;
  };
};

template <typename Span, typename Matrices>
__global__ void __launch_bounds__(kChunkThreads)
    backward_kernel(Matrices m, bool round_dsilu, Span span, float* dgate_amax, float* dup_amax) {
  using In = decltype(m.gate);
  using Out = decltype(m.dproduct);
  using Chunks = typename Matrices::Chunks;
  std::uint32_t dgate_halves = 0, dup_halves = 0;
  for_chunks_at_once<kBackwardAtOnce>(
      span,
      [&](std::int64_t row, std::int64_t col, int further) {
        return Chunks{{fetch(m.gate, row, col, further), fetch(m.up, row, col, further)},
                      fetch(m.dproduct, row, col, further)};
      },
      [&](std::int64_t row, std::int64_t col, const Chunks& fetched, auto inside) {
        constexpr bool kInside = decltype(inside)::value;
        const Values gate = decoded<In>(fetched.in.gate), dproduct = decoded<Out>(fetched.dproduct);
        Values dgate = product(dproduct, decoded<In>(fetched.in.up)), active;
        if constexpr (kCanExist<decltype(m.activation)>) {
          if (round_dsilu) dgate = rounded_to_bf16(dgate);
        }
        const Values sigmoid = sigmoids(gate, is_within(fetched.in.gate, gate, kModerate));
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          const float x = gate.x[i], sig = sigmoid.x[i];
          active.x[i] = x * sig;
          dgate.x[i] = dgate.x[i] * (sig + active.x[i] * (1.0f - sig));
        }
        if constexpr (kCanExist<decltype(m.activation)>) {
          if (m.activation.data != nullptr) active = load(m.activation, row, col);
        }
        store_rounded<kInside>(m.dgate, row, col, dgate, dgate_halves);
        store_rounded<kInside>(m.dup, row, col, product(active, dproduct), dup_halves);
      });
  join_amax<0>(dgate_amax, magnitude_of_halves(dgate_halves));
  join_amax<1>(dup_amax, magnitude_of_halves(dup_halves));
}

// The scale of silu(gate) where it is kept with one scale for the tensor: a pass of its own.
void store_silu_scale(const DeviceMatrix& gate, const DeviceMatrix& activation, cudaStream_t stream) {
  float* largest = DeviceState::current().maximum();
  const Cover whole = cover(gate.rows, gate.cols, {});
  silu_amax_kernel<<<blocks_for(whole.total(), kChunkThreads), kChunkThreads, 0, stream>>>(gate, whole,
                                                                                           largest);
  check_launch("swiglu_forward");
  store_tensor_scale(largest, activation, {}, "swiglu_forward", stream);
}

// The layouts of the recipes as one row; every other by asking.
void run_forward(const DeviceMatrix& gate, const DeviceMatrix& up, const DeviceMatrix& out,
                 const DeviceMatrix& activation, bool reread, float* amax, cudaStream_t stream) {
  const OneRow row = one_row(gate);
  const bool keeps = activation.data != nullptr;
  const Bf16Matrix out_row(as_one_row(out));
  const auto launch = [&](const auto& in_gate, const auto& in_up, const auto& to, const auto& kept,
                          const auto& span) {
    const auto kernel = forward_kernel<std::decay_t<decltype(span)>, std::decay_t<decltype(in_gate)>,
                                       std::decay_t<decltype(to)>, std::decay_t<decltype(kept)>>;
    kernel<<<chunk_blocks<kForwardAtOnce>(kernel, span), kChunkThreads, 0, stream>>>(in_gate, in_up, to, kept,
                                                                                     reread, span, amax);
  };
  if (is_grouped(gate) && is_grouped(up) && is_bf16(out) && (!keeps || is_grouped(activation))) {
    const GroupedE4M3 gate_row(as_one_row(gate)), up_row(as_one_row(up));
    if (!keeps) return launch(gate_row, up_row, out_row, NoMatrix{}, row);
    launch(gate_row, up_row, out_row, GroupedE4M3(as_one_row(activation)), row);
  } else if (is_bf16(gate) && is_bf16(up) && is_bf16(out) && (!keeps || is_bf16(activation))) {
    launch(Bf16Matrix(as_one_row(gate)), Bf16Matrix(as_one_row(up)), out_row,
           Bf16Matrix(as_one_row(activation)), row);
  } else {
    launch(gate, up, out, activation, cover(gate.rows, gate.cols, activation));
  }
}

void run_backward(const BackwardMatrices<DeviceMatrix, DeviceMatrix, DeviceMatrix>& m,
                  const SwigluBackwardArgs& args, cudaStream_t stream) {
  const OneRow row = one_row(m.gate);
  const bool reads = m.activation.data != nullptr;
  const bool plain = is_bf16(m.dproduct) && is_bf16(m.dgate) && is_bf16(m.dup);
  const auto launch = [&](const auto& matrices, const auto& span) {
    const auto kernel = backward_kernel<std::decay_t<decltype(span)>, std::decay_t<decltype(matrices)>>;
    kernel<<<chunk_blocks<kBackwardAtOnce>(kernel, span), kChunkThreads, 0, stream>>>(
        matrices, args.round_dsilu, span, args.dgate_amax_out, args.dup_amax_out);
  };
  const auto launch_rows = [&]<typename In, typename Kept>(std::type_identity<In>, const Kept& activation) {
    launch(BackwardMatrices<In, Bf16Matrix, Kept>{In(as_one_row(m.gate)), In(as_one_row(m.up)),
                                                  Bf16Matrix(as_one_row(m.dproduct)), activation,
                                                  Bf16Matrix(as_one_row(m.dgate)),
                                                  Bf16Matrix(as_one_row(m.dup))},
           row);
  };
  const DeviceMatrix activation = as_one_row(m.activation);
  if (plain && is_grouped(m.gate) && is_grouped(m.up) && !reads && !args.round_dsilu) {
    launch_rows(std::type_identity<GroupedE4M3>{}, NoMatrix{});
  } else if (plain && is_grouped(m.gate) && is_grouped(m.up) && is_grouped(m.activation)) {
    launch_rows(std::type_identity<GroupedE4M3>{}, GroupedE4M3(activation));
  } else if (plain && is_bf16(m.gate) && is_bf16(m.up) && (!reads || is_bf16(m.activation))) {
    launch_rows(std::type_identity<Bf16Matrix>{}, Bf16Matrix(activation));
  } else {
    launch(m, cover(m.gate.rows, m.gate.cols, {}));
  }
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "swiglu_forward";
  const DeviceMatrix gate = input(args.gate, kName), up = input(args.up, kName);
  const DeviceMatrix out = bf16_output(args.product, kName);
  const bool one_scale = args.activation.format.scaling == Scaling::kTensor;
  const DeviceMatrix activation = args.activation.data == nullptr ? DeviceMatrix{}
                                  : one_scale                     ? output(args.activation, kName)
                                                                  : one_pass_output(args.activation, kName);
  require_same_shape(gate, up, kName);
  require_same_shape(gate, out, kName);
  if (activation.data != nullptr) require_same_shape(gate, activation, kName);
  if (args.product_reads_activation && activation.data == nullptr && gate.rows * gate.cols > 0)
    throw std::logic_error("swiglu_forward: the product reads an activation that is not stored");
  if (gate.rows == 0 || gate.cols == 0) return clear_amax(args.amax_out, kName, stream);
  if (activation.data != nullptr && activation.scaling == Scaling::kTensor)
    store_silu_scale(gate, activation, stream);
  run_forward(gate, up, out, activation, args.product_reads_activation, args.amax_out, stream);
  check_launch(kName);
}

void swiglu_backward(const SwigluBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "swiglu_backward";
  BackwardMatrices<DeviceMatrix, DeviceMatrix, DeviceMatrix> m;
  m.gate = input(args.gate, kName);
  m.up = input(args.up, kName);
  m.dproduct = bf16_input(args.dproduct, kName);
  m.dgate = bf16_output(args.dgate, kName);
  m.dup = bf16_output(args.dup, kName);
  if (args.activation.data != nullptr) m.activation = input(args.activation, kName);
  for (const DeviceMatrix* other : {&m.up, &m.dproduct, &m.dgate, &m.dup})
    require_same_shape(m.gate, *other, kName);
  if (m.activation.data != nullptr) require_same_shape(m.gate, m.activation, kName);
  if (m.gate.rows == 0 || m.gate.cols == 0) {
    clear_amax(args.dgate_amax_out, kName, stream);
    return clear_amax(args.dup_amax_out, kName, stream);
  }
  run_backward(m, args, stream);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
