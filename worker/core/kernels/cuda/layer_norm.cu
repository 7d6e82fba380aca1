#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/norm_backward.cuh"
#include "worker/core/kernels/cuda/norm_forward.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

struct LayerNorm {
  static constexpr bool kCentred = true, kWeighted = false;
};
constexpr auto kAnyType = [](auto) { return LayerNorm{}; };

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "layer_norm_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  if (x.rows == 0 || x.cols == 0) return clear_amax(args.amax_out, kName, stream);
  run_norm_forward(x, true, kAnyType, args.eps, y, args.mean, args.rstd, args.amax_out, stream);
  check_launch(kName);
}

void layer_norm_backward(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "layer_norm_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  if (x.rows == 0 || x.cols == 0) return;
  run_norm_backward(x, true, kAnyType, args.mean, args.rstd, dy, dx, 0, nullptr, stream);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
