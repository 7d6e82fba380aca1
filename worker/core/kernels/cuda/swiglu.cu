#include "worker/core/kernels/api/exponential.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ Values silu(Values gate) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) gate.x[i] = gate.x[i] * sigmoid_f32(gate.x[i]);
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

__global__ void __launch_bounds__(kThreads)
    forward_kernel(DeviceMatrix gate, DeviceMatrix up, DeviceMatrix out, DeviceMatrix activation, Cover cover,
                   float* amax) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    const Values active = silu(load(gate, row, col));
    if (activation.data != nullptr) store(activation, row, col, active, cover.lanes_per_group);
    const Values v = product(active, load(up, row, col));
    store(out, row, col, v, 1);
    if (amax != nullptr) largest = max(largest, largest_magnitude(rounded_to_bf16(v)));
  });
  join_amax(amax, largest);
}

struct BackwardMatrices {
  DeviceMatrix gate, up, dproduct, activation, dgate, dup;
};

__global__ void __launch_bounds__(kThreads)
    backward_kernel(BackwardMatrices m, Cover cover, float* dgate_amax, float* dup_amax) {
  std::uint32_t dgate_largest = 0, dup_largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    const Values gate = load(m.gate, row, col), up = load(m.up, row, col),
                 dproduct = load(m.dproduct, row, col);
    Values dgate, active;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float x = gate.x[i], sig = sigmoid_f32(x);
      dgate.x[i] = dproduct.x[i] * up.x[i] * (sig + x * sig * (1.0f - sig));
      active.x[i] = x * sig;
    }
    if (m.activation.data != nullptr) active = load(m.activation, row, col);
    const Values dup = product(active, dproduct);
    store(m.dgate, row, col, dgate, 1);
    store(m.dup, row, col, dup, 1);
    dgate_largest = max(dgate_largest, largest_magnitude(rounded_to_bf16(dgate)));
    dup_largest = max(dup_largest, largest_magnitude(rounded_to_bf16(dup)));
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

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "swiglu_forward";
  const DeviceMatrix gate = input(args.gate, kName), up = input(args.up, kName);
  const DeviceMatrix out = bf16_output(args.product, kName);
  const DeviceMatrix activation =
      args.activation.data != nullptr ? output(args.activation, kName) : DeviceMatrix{};
  require_same_shape(gate, up, kName);
  require_same_shape(gate, out, kName);
  if (activation.data != nullptr) require_same_shape(gate, activation, kName);
  clear_amax(args.amax_out, kName, stream);
  if (gate.rows == 0 || gate.cols == 0) return;
  if (activation.data != nullptr && activation.scaling == Scaling::kTensor)
    store_silu_scale(gate, activation, stream);
  const Cover whole = cover(gate.rows, gate.cols, activation);
  forward_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(gate, up, out, activation,
                                                                               whole, args.amax_out);
  check_launch(kName);
}

void swiglu_backward(const SwigluBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "swiglu_backward";
  BackwardMatrices m;
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
  const Cover whole = cover(m.gate.rows, m.gate.cols, {});
  backward_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(m, whole, args.dgate_amax_out,
                                                                                args.dup_amax_out);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
