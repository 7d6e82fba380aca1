#include <numbers>

#include "worker/core/kernels/api/normal_distribution.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
#include "worker/core/kernels/cuda/fetched.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"
#include "worker/core/kernels/cuda/sigmoid.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kAtOnce = 2;

// normal_cdf_f32 and normal_pdf_f32 for |x| <= kModerateNormal, their bits: the exponentials' arguments stay
// within kModerate.
constexpr float kModerateNormal = 12.5f;
struct ModerateNormal {
  __device__ static float cdf(float x) {
    const float magnitude = fabsf(x);
    const float t = moderate_reciprocal(1.0f + magnitude * (std::numbers::sqrt2_v<float> / 4));
    const float tail =
        0.5f * t * moderate_exp(__fmaf_rn(magnitude * -0.5f, magnitude, normal_tail_exponent(t)));
    return x < 0 ? tail : 1.0f - tail;
  }
  __device__ static float pdf(float x) { return kNormalDensity * moderate_exp(x * x * -0.5f); }
};
// Rarely needed, so that one copy of each will do.
struct AnyNormal {
  __device__ __noinline__ static float cdf(float x) { return normal_cdf_f32(x); }
  __device__ __noinline__ static float pdf(float x) { return normal_pdf_f32(x); }
};

template <typename Normal>
__device__ Values gelu(Values v) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * Normal::cdf(v.x[i]);
  return v;
}

template <typename Normal>
__device__ Values gelu_slope(Values v, const Values& dy) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    v.x[i] = dy.x[i] * (Normal::cdf(v.x[i]) + v.x[i] * Normal::pdf(v.x[i]));
  }
  return v;
}

template <typename X, typename Gradient>
struct Chunks {
  Fetched<X> x;
  Fetched<Gradient> dy;
};
template <typename X>
struct Chunks<X, NoMatrix> {
  Fetched<X> x;
};

// Backward where `dy` is a matrix, else forward.
template <typename Span, typename X, typename Gradient, typename Out>
__global__ void __launch_bounds__(kChunkThreads)
    gelu_kernel(X x, Gradient dy, Out out, Span span, float* amax) {
  using In = Chunks<X, Gradient>;
  std::uint32_t halves = 0;
  for_chunks_at_once<kAtOnce>(
      span,
      [&](std::int64_t row, std::int64_t col, int further) {
        if constexpr (kCanExist<Gradient>) {
          return In{fetch(x, row, col, further), fetch(dy, row, col, further)};
        } else {
          return In{fetch(x, row, col, further)};
        }
      },
      [&](std::int64_t row, std::int64_t col, const In& in, auto inside) {
        Values v = decoded<X>(in.x);
        const bool moderate = is_within(in.x, v, kModerateNormal);
        if constexpr (kCanExist<Gradient>) {
          const Values g = decoded<Gradient>(in.dy);
          v = moderate ? gelu_slope<ModerateNormal>(v, g) : gelu_slope<AnyNormal>(v, g);
        } else {
          v = moderate ? gelu<ModerateNormal>(v) : gelu<AnyNormal>(v);
        }
        store_rounded<decltype(inside)::value>(out, row, col, v, halves);
      });
  join_amax(amax, magnitude_of_halves(halves));
}

// The layouts of the recipes as one row, where `typed` says that dy_row fits; every other by asking.
template <typename Gradient, typename TypedGradient>
void run(const DeviceMatrix& x, const Gradient& dy, const TypedGradient& dy_row, bool typed,
         const DeviceMatrix& out, float* amax, const char* operation, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return clear_amax(amax, operation, stream);
  const auto launch = [&](const auto& in, const auto& gradient, const auto& to, const auto& span) {
    const auto kernel = gelu_kernel<std::decay_t<decltype(span)>, std::decay_t<decltype(in)>,
                                    std::decay_t<decltype(gradient)>, std::decay_t<decltype(to)>>;
    kernel<<<chunk_blocks<kAtOnce>(kernel, span), kChunkThreads, 0, stream>>>(in, gradient, to, span, amax);
  };
  const Bf16Matrix out_row(as_one_row(out));
  if (typed && is_bf16(out) && is_grouped(x)) {
    launch(GroupedE4M3(as_one_row(x)), dy_row, out_row, one_row(x));
  } else if (typed && is_bf16(out) && is_bf16(x)) {
    launch(Bf16Matrix(as_one_row(x)), dy_row, out_row, one_row(x));
  } else {
    launch(x, dy, out, cover(x.rows, x.cols, {}));
  }
  check_launch(operation);
}

}  // namespace

void gelu_forward(const GeluForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "gelu_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  run(x, NoMatrix{}, NoMatrix{}, /*typed=*/true, y, args.amax_out, kName, stream);
}

void gelu_backward(const GeluBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "gelu_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  run(x, dy, Bf16Matrix(as_one_row(dy)), is_bf16(dy), dx, args.amax_out, kName, stream);
}

}  // namespace coat::kernels::cuda
