#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/error_sums.cuh"
#include "worker/core/kernels/cuda/error_sums.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/quant/expansion.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;                       // elements of a thread
constexpr std::int64_t kTile = kWarp * kQuad;  // elements of a warp; groups never straddle two
constexpr std::uint32_t kNoMagnitude = 0x7FFFFFFFu;

struct Quad {
  float x[kQuad];
};

// How one moment is stored, as device code needs it.
struct MomentStore {
  Format format = Format::kFp32;
  int group = static_cast<int>(kTile);
  bool stochastic = false;
  int number = 1;  // keys its random numbers
  const float* values = nullptr;
  const float* boundaries = nullptr;
  const double* largest_ratios = nullptr;
};

struct MomentData {
  void* stored;
  float* amax;
  std::uint8_t* k16;
};

// AdamWTensor as the kernel reads it.
struct TensorEntry {
  float* value;
  const float* gradient;
  std::int64_t elements;
  MomentData m, v;
  std::int64_t first_index;
  std::int64_t first_tile;
  std::uint32_t id;
  float weight_decay;
  bool aligned;  // whole quads can be read at once
};

struct StepScalars {
  const float* gradient_scale;
  float beta1, beta2, eps, learning_rate, bias_correction1, root_bias_correction2;
  std::uint64_t seed, step;
};

// The elements of one thread: `count` of them from `first` on.
struct Span {
  std::int64_t first;
  int count;
  bool whole;  // 4, aligned
};

__device__ Quad load_fp32(const float* data, const Span& span) {
  if (span.whole) {
    const float4 v = *reinterpret_cast<const float4*>(data + span.first);
    return {{v.x, v.y, v.z, v.w}};
  }
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.x[i] = i < span.count ? data[span.first + i] : 0.0f;
  return quad;
}

__device__ void store_fp32(float* data, const Span& span, const Quad& quad) {
  if (span.whole) {
    *reinterpret_cast<float4*>(data + span.first) = make_float4(quad.x[0], quad.x[1], quad.x[2], quad.x[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) data[span.first + i] = quad.x[i];
  }
}

__device__ std::uint32_t load_codes(const std::uint8_t* codes, const Span& span) {
  if (span.whole) return *reinterpret_cast<const std::uint32_t*>(codes + span.first);
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) packed |= static_cast<std::uint32_t>(codes[span.first + i]) << (8 * i);
  }
  return packed;
}

__device__ void store_codes(std::uint8_t* codes, const Span& span, std::uint32_t packed) {
  if (span.whole) {
    *reinterpret_cast<std::uint32_t*>(codes + span.first) = packed;
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < span.count) codes[span.first + i] = static_cast<std::uint8_t>(packed >> (8 * i));
  }
}

__device__ float expanded_value(const float* values, float amax, std::uint32_t code) {
  return __uint_as_float(__float_as_uint(amax * values[code & 0x7Fu]) | (code & 0x80u) << 24);
}

__device__ Quad expanded_values(const float* values, float amax, std::uint32_t packed, const Span& span) {
  Quad quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    quad.x[i] = i < span.count ? expanded_value(values, amax, (packed >> (8 * i)) & 0xFFu) : 0.0f;
  }
  return quad;
}

__device__ Quad load_moment(const MomentStore& store, const MomentData& data, const Span& span) {
  if (store.format == Format::kFp32) return load_fp32(static_cast<const float*>(data.stored), span);
  if (span.count == 0) return Quad{};
  const std::int64_t group = span.first / store.group;
  const float* values = store.values + 128 * data.k16[group];
  return expanded_values(values, data.amax[group],
                         load_codes(static_cast<const std::uint8_t*>(data.stored), span), span);
}

// [0, 1) for the elements of the span, by their index in the whole parameter.
__device__ Quad uniforms(const PhiloxStream& random, std::int64_t index) {
  Quad quad;
  if (index % kQuad == 0) {
    const PhiloxBlock block =
        philox4x32(random.counter(static_cast<std::uint64_t>(index / kQuad)), random.key());
#pragma unroll
    for (int i = 0; i < kQuad; ++i) quad.x[i] = philox_uniform(block.word[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) quad.x[i] = random.uniform(static_cast<std::uint64_t>(index + i));
  }
  return quad;
}

// Zero has no sign; another value never becomes zero.
__device__ std::uint32_t with_sign(std::int32_t magnitude, float value) {
  const std::uint32_t sign = (__float_as_uint(value) >> 24) & 0x80u;
  return value != 0.0f ? static_cast<std::uint32_t>(magnitude > 1 ? magnitude : 1) | sign : 0u;
}

__device__ std::uint32_t encode_quad(const MomentStore& store, int k16, float amax, const Quad& quad,
                                     const Quad& uniform) {
  std::uint32_t packed = 0;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float ratio = fabsf(quad.x[i]) / amax;
    const std::int32_t magnitude =
        store.stochastic ? stochastic_expanded_code(store.values + 128 * k16, ratio, uniform.x[i])
                         : nearest_expanded_code(store.boundaries + 128 * k16, ratio);
    packed |= with_sign(magnitude, quad.x[i]) << (8 * i);
  }
  return packed;
}

struct GroupRange {
  std::uint32_t largest = 0;
  std::uint32_t smallest = kNoMagnitude;  // of those that are not zero
};

// Of the group that this thread's elements lie in. Every lane of the warp takes part.
__device__ GroupRange group_range(const Quad& quad, int group) {
  GroupRange range;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const std::uint32_t bits = magnitude_bits(quad.x[i]);
    range.largest = max(range.largest, bits);
    range.smallest = min(range.smallest, bits == 0 ? kNoMagnitude : bits);
  }
  for (int offset = group / kQuad / 2; offset > 0; offset /= 2) {
    range.largest = max(range.largest, __shfl_xor_sync(kWholeWarp, range.largest, offset));
    range.smallest = min(range.smallest, __shfl_xor_sync(kWholeWarp, range.smallest, offset));
  }
  return range;
}

// Stores the moment and returns it as it will be read back. Elements beyond the span are 0 in `quad`. Every
// lane of the warp takes part. measured: adds k of the group to *sums, by its first thread.
template <bool kMeasured>
__device__ void store_moment(const MomentStore& store, const MomentData& data, const Span& span,
                             const Quad& quad, PhiloxStream random, std::int64_t first_index,
                             ErrorSums* sums) {
  Quad kept = quad;
  if (store.format == Format::kFp32) {
    store_fp32(static_cast<float*>(data.stored), span, quad);
  } else {
    const GroupRange range = group_range(quad, store.group);
    if (span.count == 0) return;
    const float amax = __uint_as_float(range.largest);
    const bool zeros = amax == 0.0f;
    const int k16 =
        zeros ? kMaxK16 : expanded_k16(store.largest_ratios, amax, __uint_as_float(range.smallest));
    random.moment = store.number;
    const Quad uniform = store.stochastic && !zeros ? uniforms(random, first_index + span.first) : Quad{};
    const std::uint32_t packed = zeros ? 0u : encode_quad(store, k16, amax, quad, uniform);
    store_codes(static_cast<std::uint8_t*>(data.stored), span, packed);
    const bool leads = span.first % store.group == 0;
    if (leads) {
      data.amax[span.first / store.group] = amax;
      data.k16[span.first / store.group] = static_cast<std::uint8_t>(k16);
    }
    if (kMeasured) {
      kept = expanded_values(store.values + 128 * k16, amax, packed, span);
      if (leads) {
        sums->k_sum += static_cast<double>(k16) / 16.0;
        sums->k_groups += 1.0;
      }
    }
  }
  if (kMeasured) {
    for (int i = 0; i < span.count; ++i) add_error(quad.x[i], kept.x[i], *sums);
  }
}

// New moments and value of the span, in FP32, from the old ones (COAT.md 1.2).
__device__ void update(const StepScalars& s, float gradient_scale, float weight_decay, const Quad& gradient,
                       Quad& value, Quad& m, Quad& v) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const float g = gradient.x[i] * gradient_scale;
    m.x[i] = s.beta1 * m.x[i] + (1.0f - s.beta1) * g;
    v.x[i] = s.beta2 * v.x[i] + (1.0f - s.beta2) * (g * g);
    const float denominator = (sqrtf(v.x[i]) / s.root_bias_correction2 + s.eps) * s.bias_correction1;
    value.x[i] -= s.learning_rate * (m.x[i] / denominator + weight_decay * value.x[i]);
  }
}

// A warp takes tiles of the tensors, numbered through. measured: partial[2 * block] and the next are the
// errors of m and v.
template <bool kMeasured>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const TensorEntry* tensors, int count, std::int64_t tiles, MomentStore store1,
                 MomentStore store2, StepScalars scalars, ErrorSums* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / kWarp);
  const float gradient_scale = scalars.gradient_scale != nullptr ? *scalars.gradient_scale : 1.0f;
  ErrorSums m_sums, v_sums;
  int index = 0;
  for (std::int64_t tile = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp; tile < tiles;
       tile += warps) {
    while (index + 1 < count && tensors[index + 1].first_tile <= tile) ++index;
    const TensorEntry& t = tensors[index];
    const std::int64_t first = (tile - t.first_tile) * kTile + lane * kQuad;
    const std::int64_t left = t.elements - first;
    const Span span{first,
                    static_cast<int>(left < 0       ? 0
                                     : left < kQuad ? left
                                                    : kQuad),
                    t.aligned && left >= kQuad};
    Quad m = load_moment(store1, t.m, span), v = load_moment(store2, t.v, span),
         value = load_fp32(t.value, span);
    update(scalars, gradient_scale, t.weight_decay, load_fp32(t.gradient, span), value, m, v);
    store_fp32(t.value, span, value);
    const PhiloxStream random{scalars.seed, scalars.step, t.id, 1};
    store_moment<kMeasured>(store1, t.m, span, m, random, t.first_index, &m_sums);
    store_moment<kMeasured>(store2, t.v, span, v, random, t.first_index, &v_sums);
  }
  if (kMeasured) {
    store_block_sums(m_sums, partial + 2 * blockIdx.x);
    store_block_sums(v_sums, partial + 2 * blockIdx.x + 1);
  }
}

MomentStore store_of(const MomentFormat& format, int number) {
  MomentStore store;
  store.number = number;
  store.format = format.format;
  if (format.format == Format::kFp32) return store;
  if (format.format != Format::kE4M3) throw std::logic_error("adamw: moments must be FP32 or E4M3");
  const bool fits = format.group >= 2 * kQuad && format.group <= kTile &&
                    std::has_single_bit(static_cast<unsigned>(format.group));
  if (!fits) {
    throw UnsupportedError("adamw: groups of " + std::to_string(format.group) +
                           " elements have no CUDA version; use 8, 16, 32, 64 or 128");
  }
  DeviceState& state = DeviceState::current();
  store.group = format.group;
  store.stochastic = format.rounding == Rounding::kStochastic;
  store.values = state.expansion().values;
  store.boundaries = state.expansion().boundaries;
  store.largest_ratios = state.largest_ratios(format.range_bound);
  return store;
}

bool on_border(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

bool quads_are_aligned(const AdamWTensor& tensor, const AdamWArgs& args) {
  const auto border = [](const MomentFormat& format) {
    return std::uintptr_t{4} * static_cast<unsigned>(bytes_of(format.format));
  };
  return on_border(tensor.value, 16) && on_border(tensor.gradient, 16) &&
         on_border(tensor.m, border(args.moment1)) && on_border(tensor.v, border(args.moment2));
}

std::vector<TensorEntry> entries_of(const AdamWArgs& args, std::int64_t& tiles) {
  std::vector<TensorEntry> entries;
  for (const AdamWTensor& tensor : args.tensors) {
    if (tensor.elements <= 0) continue;
    entries.push_back({tensor.value,
                       tensor.gradient,
                       tensor.elements,
                       {tensor.m, tensor.m_amax, tensor.m_k16},
                       {tensor.v, tensor.v_amax, tensor.v_k16},
                       tensor.first_index,
                       tiles,
                       tensor.id,
                       tensor.decay ? args.weight_decay : 0.0f,
                       quads_are_aligned(tensor, args)});
    tiles += (tensor.elements + kTile - 1) / kTile;
  }
  return entries;
}

const TensorEntry* upload(const std::vector<TensorEntry>& entries, cudaStream_t stream) {
  auto* table = DeviceState::current().tensor_table().elements<TensorEntry>(
      static_cast<std::int64_t>(entries.size()), "adamw");
  check(cudaMemcpyAsync(table, entries.data(), entries.size() * sizeof(TensorEntry), cudaMemcpyHostToDevice,
                        stream),
        "adamw");
  return table;
}

}  // namespace

void adamw(const AdamWArgs& args, ErrorSums* m, ErrorSums* v, cudaStream_t stream) {
  const MomentStore store1 = store_of(args.moment1, 1), store2 = store_of(args.moment2, 2);
  std::int64_t tiles = 0;
  const std::vector<TensorEntry> entries = entries_of(args, tiles);
  if (entries.empty()) return;
  const StepScalars scalars{args.gradient_scale,
                            args.beta1,
                            args.beta2,
                            args.eps,
                            args.learning_rate,
                            static_cast<float>(args.bias_correction1),
                            static_cast<float>(std::sqrt(args.bias_correction2)),
                            args.seed,
                            args.step};
  const TensorEntry* table = upload(entries, stream);
  const int count = static_cast<int>(entries.size());
  const int blocks = blocks_for(tiles * kWarp, kThreads);
  if (m == nullptr && v == nullptr) {
    adamw_kernel<false>
        <<<blocks, kThreads, 0, stream>>>(table, count, tiles, store1, store2, scalars, nullptr);
    return check_launch("adamw");
  }
  ErrorSums* partial = DeviceState::current().partial_sums().elements<ErrorSums>(2 * blocks, "adamw");
  adamw_kernel<true><<<blocks, kThreads, 0, stream>>>(table, count, tiles, store1, store2, scalars, partial);
  check_launch("adamw");
  ErrorSums unwanted;
  ErrorSums* const totals[] = {m != nullptr ? m : &unwanted, v != nullptr ? v : &unwanted};
  add_error_sums(partial, blocks, 2, totals, "adamw", stream);
}

}  // namespace coat::kernels::cuda
