#include <stdexcept>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"
#include "worker/core/kernels/cuda/sigmoid.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ Values silu(Values gate) {
  const Values sigmoid = sigmoids(gate);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) gate.x[i] = gate.x[i] * sigmoid.x[i];
  return gate;
}

__device__ Values product(Values a, const Values& b) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) a.x[i] = a.x[i] * b.x[i];
  return a;
}

__global__ void __launch_bounds__(kThreads) silu_amax_kernel(DeviceMatrix gate, Cover cover, float* amax) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    largest = max(largest, largest_magnitude(silu(load(gate, row, col))));
  });
  join_amax(amax, largest);
}

// Cover or OneRow; inputs of one type, BF16 results of another, and what is kept of silu(gate).
template <typename Span, typename In, typename Out, typename Kept>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(In gate, In up, Out out, Kept activation, bool product_reads_activation, Span cover,
                   float* amax) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    const Values gates = load(gate, row, col), ups = load(up, row, col);
    Values active = silu(gates);
    if constexpr (kCanExist<Kept>) {
      if (activation.data != nullptr) store(activation, row, col, active, cover.lanes_per_group);
      if (product_reads_activation) {
        __syncwarp();  // another lane may have stored the group's scale
        active = load(activation, row, col);
      }
    }
    largest = max(largest, store_rounded(out, row, col, product(active, ups)));
  });
  join_amax(amax, largest);
}

template <typename In, typename Out, typename Kept>
struct BackwardMatrices {
  In gate, up;
  Out dproduct;
  Kept activation;
  Out dgate, dup;
};

template <typename Span, typename Matrices>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Matrices m, bool round_dsilu, Span cover, float* dgate_amax, float* dup_amax) {
  std::uint32_t dgate_largest = 0, dup_largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    const Values gate = load(m.gate, row, col), up = load(m.up, row, col),
                 dproduct = load(m.dproduct, row, col);
    Values dgate = product(dproduct, up), active;
    if constexpr (kCanExist<decltype(m.activation)>) {
      if (round_dsilu) dgate = rounded_to_bf16(dgate);
    }
    const Values sigmoid = sigmoids(gate);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float x = gate.x[i], sig = sigmoid.x[i];
      dgate.x[i] = dgate.x[i] * (sig + x * sig * (1.0f - sig));
      active.x[i] = x * sig;
    }
    if constexpr (kCanExist<decltype(m.activation)>) {
      if (m.activation.data != nullptr) active = load(m.activation, row, col);
    }
    dgate_largest = max(dgate_largest, store_rounded(m.dgate, row, col, dgate));
    dup_largest = max(dup_largest, store_rounded(m.dup, row, col, product(active, dproduct)));
  });
  join_amax(dgate_amax, dgate_largest);
  join_amax(dup_amax, dup_largest);
}

// The scale of silu(gate) where it is kept with one scale for the tensor: a pass of its own.
void store_silu_scale(const DeviceMatrix& gate, const DeviceMatrix& activation, cudaStream_t stream) {
  float* largest = DeviceState::current().maximum();
  clear_amax(largest, "swiglu_forward", stream);
  const Cover whole = cover(gate.rows, gate.cols, {});
  silu_amax_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(gate, whole, largest);
  check_launch("swiglu_forward");
  store_tensor_scale(largest, activation, {}, "swiglu_forward", stream);
}

// The layouts of the recipes as one row; every other by asking.
void run_forward(const DeviceMatrix& gate, const DeviceMatrix& up, const DeviceMatrix& out,
                 const DeviceMatrix& activation, bool reread, float* amax, cudaStream_t stream) {
  const Cover whole = cover(gate.rows, gate.cols, activation);
  const int blocks = blocks_for(whole.total(), kThreads);
  const OneRow row = one_row(gate);
  const bool keeps = activation.data != nullptr;
  const Bf16Matrix out_row(as_one_row(out));
  if (is_grouped(gate) && is_grouped(up) && is_bf16(out) && !keeps) {
    const GroupedE4M3 gate_row(as_one_row(gate)), up_row(as_one_row(up));
    forward_kernel<<<blocks, kThreads, 0, stream>>>(gate_row, up_row, out_row, NoMatrix{}, false, row, amax);
  } else if (is_grouped(gate) && is_grouped(up) && is_bf16(out) && is_grouped(activation)) {
    const GroupedE4M3 gate_row(as_one_row(gate)), up_row(as_one_row(up)), kept(as_one_row(activation));
    forward_kernel<<<blocks, kThreads, 0, stream>>>(gate_row, up_row, out_row, kept, reread, row, amax);
  } else if (is_bf16(gate) && is_bf16(up) && is_bf16(out) && (!keeps || is_bf16(activation))) {
    const Bf16Matrix gate_row(as_one_row(gate)), up_row(as_one_row(up)), kept(as_one_row(activation));
    forward_kernel<<<blocks, kThreads, 0, stream>>>(gate_row, up_row, out_row, kept, reread, row, amax);
  } else {
    forward_kernel<<<blocks, kThreads, 0, stream>>>(gate, up, out, activation, reread, whole, amax);
  }
}

void run_backward(const BackwardMatrices<DeviceMatrix, DeviceMatrix, DeviceMatrix>& m,
                  const SwigluBackwardArgs& args, cudaStream_t stream) {
  const Cover whole = cover(m.gate.rows, m.gate.cols, {});
  const int blocks = blocks_for(whole.total(), kThreads);
  const OneRow row = one_row(m.gate);
  const bool reads = m.activation.data != nullptr;
  const bool plain = is_bf16(m.dproduct) && is_bf16(m.dgate) && is_bf16(m.dup);
  const auto launch = [&](const auto& matrices, const auto& span) {
    backward_kernel<<<blocks, kThreads, 0, stream>>>(matrices, args.round_dsilu, span, args.dgate_amax_out,
                                                     args.dup_amax_out);
  };
  const Bf16Matrix dproduct(as_one_row(m.dproduct)), dgate(as_one_row(m.dgate)), dup(as_one_row(m.dup));
  if (plain && is_grouped(m.gate) && is_grouped(m.up) && !reads && !args.round_dsilu) {
    const BackwardMatrices<GroupedE4M3, Bf16Matrix, NoMatrix> rows{
        GroupedE4M3(as_one_row(m.gate)), GroupedE4M3(as_one_row(m.up)), dproduct, {}, dgate, dup};
    launch(rows, row);
  } else if (plain && is_grouped(m.gate) && is_grouped(m.up) && is_grouped(m.activation)) {
    launch(BackwardMatrices<GroupedE4M3, Bf16Matrix, GroupedE4M3>{GroupedE4M3(as_one_row(m.gate)),
                                                                  GroupedE4M3(as_one_row(m.up)), dproduct,
                                                                  GroupedE4M3(as_one_row(m.activation)),
                                                                  dgate, dup},
           row);
  } else if (plain && is_bf16(m.gate) && is_bf16(m.up) && (!reads || is_bf16(m.activation))) {
    const BackwardMatrices<Bf16Matrix, Bf16Matrix, Bf16Matrix> rows{Bf16Matrix(as_one_row(m.gate)),
                                                                    Bf16Matrix(as_one_row(m.up)),
                                                                    dproduct,
                                                                    Bf16Matrix(as_one_row(m.activation)),
                                                                    dgate,
                                                                    dup};
    launch(rows, row);
  } else {
    launch(m, whole);
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
  clear_amax(args.amax_out, kName, stream);
  if (gate.rows == 0 || gate.cols == 0) return;
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
  clear_amax(args.dgate_amax_out, kName, stream);
  clear_amax(args.dup_amax_out, kName, stream);
  if (m.gate.rows == 0 || m.gate.cols == 0) return;
  run_backward(m, args, stream);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
