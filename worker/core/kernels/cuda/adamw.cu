#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/adamw_parts.cuh"
#include "worker/core/kernels/cuda/adamw_whole_tile.cuh"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/error_sums.cuh"
#include "worker/core/kernels/cuda/error_sums.h"
#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels::cuda {
namespace {

using namespace adamw_parts;

constexpr int kThreads = 256;

// Stores the moment. Elements beyond the span are 0 in `quad`. Every lane of the warp takes part. measured:
// *kept is what will be read back, and k of the group goes to *sums, by its first thread.
template <bool kMeasured>
__device__ void store_moment(const MomentStore& store, const GroupData& data, const Span& span,
                             const Quad& quad, const Words& words, Quad* kept, ErrorSums* sums) {
  if (kMeasured) *kept = quad;
  if (store.code == MomentCode::kFp32) return store_fp32(static_cast<float*>(data.stored), span, quad);
  const GroupRange range = group_range(quad, store.group);
  if (span.count == 0) return;
  const float amax = stored_amax(__uint_as_float(range.largest), false);
  const bool zeros = amax == 0.0f;
  const int row =
      zeros ? kLastRow : choose_row(store.limits, store.first_row, amax, __uint_as_float(range.smallest));
  const std::uint32_t packed = zeros ? 0u : encode_quad(store, row, amax, quad, words);
  store_codes(static_cast<std::uint8_t*>(data.stored), span, packed);
  const bool leads = span.first % store.group == 0;
  if (leads) {
    data.amax[span.first / store.group] = amax;
    data.row[span.first / store.group] = static_cast<std::uint8_t>(row);
  }
  if (!kMeasured) return;
  *kept = expanded_values(store.values + 128 * row, amax, packed, span);
  for (int i = 0; i < span.count; ++i) sums->saturated += fabsf(quad.x[i]) > amax ? 1.0 : 0.0;
  if (!leads) return;
  const double k = static_cast<double>(row) / 16.0;
  sums->k_sum += k;
  sums->k_groups += 1.0;
  sums->k_histogram[exponent_bucket(k)] += 1.0;
}

// The errors of a span.
__device__ inline void measure(const Span& span, double eps, const Quad& m, const Quad& v, const Quad& kept_m,
                               const Quad& kept_v, AdamWErrors& errors) {
  for (int i = 0; i < span.count; ++i) {
    add_error(m.x[i], kept_m.x[i], errors.moment1);
    add_error(v.x[i], kept_v.x[i], errors.moment2);
    const double reference = static_cast<double>(m.x[i]) / (sqrt(static_cast<double>(v.x[i])) + eps);
    const double kept = static_cast<double>(kept_m.x[i]) / (sqrt(static_cast<double>(kept_v.x[i])) + eps);
    add_error(reference, kept, errors.update);
  }
}

// One tile of a tensor, by a warp; any formats, sizes and alignment.
template <bool kMeasured>
__device__ __noinline__ void step_tile(const TensorEntry& t, std::int64_t tile, const MomentStore& store1,
                                       const MomentStore& store2, const StepScalars& scalars,
                                       float gradient_scale, AdamWErrors* errors) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
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
  Words words{};
  if (store1.stochastic || store2.stochastic) {
    words = random_words({scalars.seed, scalars.step, t.id}, t.first_index + span.first);
  }
  Quad kept_m, kept_v;
  store_moment<kMeasured>(store1, t.m, span, m, words, &kept_m, kMeasured ? &errors->moment1 : nullptr);
  store_moment<kMeasured>(store2, t.v, span, v, words, &kept_v, kMeasured ? &errors->moment2 : nullptr);
  if (kMeasured) measure(span, scalars.eps, m, v, kept_m, kept_v, *errors);
}

// A warp takes tiles of the tensors, numbered through. measured: partial[3 * block] and the next two are the
// errors of m, v and u. A scale of NaN: nothing is written, the errors are 0.
template <bool kMeasured>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const TensorEntry* tensors, int count, std::int64_t tiles,
                 const __grid_constant__ MomentStore store1, const __grid_constant__ MomentStore store2,
                 const __grid_constant__ StepScalars scalars, ErrorSums* partial) {
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / kWarp);
  const float gradient_scale = scalars.gradient_scale != nullptr ? *scalars.gradient_scale : 1.0f;
  const std::int64_t end = isnan(gradient_scale) ? 0 : tiles;
  AdamWErrors errors;
  int index = 0;
  for (std::int64_t tile = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp; tile < end;
       tile += warps) {
    while (index + 1 < count && tensors[index + 1].first_tile <= tile) ++index;
    step_tile<kMeasured>(tensors[index], tile, store1, store2, scalars, gradient_scale, &errors);
  }
  if (kMeasured) {
    store_block_sums(errors.moment1, partial + 3 * blockIdx.x);
    store_block_sums(errors.moment2, partial + 3 * blockIdx.x + 1);
    store_block_sums(errors.update, partial + 3 * blockIdx.x + 2);
  }
}

// The same where both moments are E4M3 in groups of 128, rounded stochastically: whole tiles in the fast way,
// the rest as above. One block a multiprocessor, with the table of values in its shared memory.
__global__ void __launch_bounds__(whole_tile::kThreads, 1)
    whole_tiles_kernel(const TensorEntry* tensors, int count, std::int64_t tiles,
                       const __grid_constant__ MomentStore store1, const __grid_constant__ MomentStore store2,
                       const __grid_constant__ StepScalars scalars) {
  extern __shared__ char shared[];
  const whole_tile::Tables tables = whole_tile::load_tables(shared, store1, store2);
  const std::int64_t warps = std::int64_t{gridDim.x} * (whole_tile::kThreads / kWarp);
  const float gradient_scale = scalars.gradient_scale != nullptr ? *scalars.gradient_scale : 1.0f;
  if (isnan(gradient_scale)) return;
  int index = 0;
  for (std::int64_t tile = (std::int64_t{blockIdx.x} * whole_tile::kThreads + threadIdx.x) / kWarp;
       tile < tiles; tile += warps) {
    while (index + 1 < count && tensors[index + 1].first_tile <= tile) ++index;
    const TensorEntry& t = tensors[index];
    if (t.aligned && t.first_index % kQuad == 0 && t.elements - (tile - t.first_tile) * kTile >= kTile) {
      whole_tile::step(t, tile - t.first_tile, tables, scalars, gradient_scale);
    } else {
      step_tile<false>(t, tile, store1, store2, scalars, gradient_scale, nullptr);
    }
  }
}

MomentStore store_of(const MomentFormat& format, MomentUse use) {
  require_usable(format, use);
  MomentStore store;
  store.use = use == MomentUse::kFirst ? RoundingUse::kMoment1 : RoundingUse::kMoment2;
  store.code = format.code;
  if (!format.is_quantized()) return store;
  if (format.code != MomentCode::kE4M3 || !format.expand || format.amax_format != Format::kFp32) {
    throw UnsupportedError(std::string("adamw: moments as ") + name_of(format.code) +
                           " have no CUDA version; use e4m3 that expands, with amax in FP32");
  }
  const bool fits = format.group >= 2 * kQuad && format.group <= kTile &&
                    std::has_single_bit(static_cast<unsigned>(format.group));
  if (!fits) {
    throw UnsupportedError("adamw: groups of " + std::to_string(format.group) +
                           " elements have no CUDA version; use 8, 16, 32, 64 or 128");
  }
  DeviceState& state = DeviceState::current();
  store.group = format.group;
  store.stochastic = format.rounding == Rounding::kStochastic;
  store.last = MomentTable::of(format.code).count() - 1;
  store.first_row = MomentTable::of(format.code).first_row();
  store.values = state.expansion().values;
  store.boundaries = state.expansion().boundaries;
  store.limits = state.row_limits(format);
  return store;
}

bool on_border(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

bool quads_are_aligned(const AdamWTensor& tensor, const AdamWArgs& args) {
  const auto border = [](const MomentFormat& format) {
    return std::uintptr_t{4} * (format.is_quantized() ? 1u : 4u);
  };
  return on_border(tensor.value, 16) && on_border(tensor.gradient, 16) &&
         on_border(tensor.m.data, border(args.moment1)) && on_border(tensor.v.data, border(args.moment2));
}

std::vector<TensorEntry> entries_of(const AdamWArgs& args, std::int64_t& tiles) {
  std::vector<TensorEntry> entries;
  for (const AdamWTensor& tensor : args.tensors) {
    if (tensor.elements <= 0) continue;
    entries.push_back({static_cast<float*>(tensor.value),
                       static_cast<const float*>(tensor.gradient),
                       tensor.elements,
                       {tensor.m.data, static_cast<float*>(tensor.m.amax), tensor.m.row},
                       {tensor.v.data, static_cast<float*>(tensor.v.amax), tensor.v.row},
                       tensor.first_index,
                       tiles,
                       tensor.id,
                       tensor.decay ? args.weight_decay : 0.0f,
                       quads_are_aligned(tensor, args)});
    tiles += (tensor.elements + kTile - 1) / kTile;
  }
  return entries;
}

// What follows from the others, once for all threads.
void add_constants(StepScalars& scalars) {
  const float root = scalars.root_bias_correction2;
  const bool all_ones = (std::bit_cast<std::uint32_t>(root) & 0x7FFFFFu) == 0x7FFFFFu;
  scalars.easy_root = root > 0x1p-20f && root <= 1.0f && !all_ones;
  scalars.reciprocal_root = 1.0f / root;
  PhiloxKey key = PhiloxStream{scalars.seed, scalars.step, 0}.key();
  for (PhiloxKey& round : scalars.keys) {
    round = key;
    key = philox_next_key(key);
  }
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

void adamw(const AdamWArgs& args, AdamWErrors* errors, cudaStream_t stream) {
  const MomentStore store1 = store_of(args.moment1, MomentUse::kFirst),
                    store2 = store_of(args.moment2, MomentUse::kSecond);
  if (args.weights != WeightFormat::kFp32 || args.gradient != Format::kFp32) {
    throw UnsupportedError("adamw: weights and gradients in BF16 have no CUDA version");
  }
  std::int64_t tiles = 0;
  const std::vector<TensorEntry> entries = entries_of(args, tiles);
  if (entries.empty()) return;
  StepScalars scalars{args.gradient_scale,
                      args.beta1,
                      args.beta2,
                      args.eps,
                      args.learning_rate,
                      static_cast<float>(args.bias_correction1),
                      static_cast<float>(std::sqrt(args.bias_correction2)),
                      args.seed,
                      args.step};
  add_constants(scalars);
  const TensorEntry* table = upload(entries, stream);
  const int count = static_cast<int>(entries.size());
  const int blocks = blocks_for(tiles * kWarp, kThreads);
  if (errors == nullptr && whole_tile::fits(store1) && whole_tile::fits(store2)) {
    check(cudaFuncSetAttribute(whole_tiles_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               whole_tile::kSharedBytes),
          "adamw");
    const int one_each = DeviceState::current().multiprocessors();
    whole_tiles_kernel<<<one_each, whole_tile::kThreads, whole_tile::kSharedBytes, stream>>>(
        table, count, tiles, store1, store2, scalars);
    return check_launch("adamw");
  }
  if (errors == nullptr) {
    adamw_kernel<false>
        <<<blocks, kThreads, 0, stream>>>(table, count, tiles, store1, store2, scalars, nullptr);
    return check_launch("adamw");
  }
  ErrorSums* partial = DeviceState::current().partial_sums().elements<ErrorSums>(3 * blocks, "adamw");
  adamw_kernel<true><<<blocks, kThreads, 0, stream>>>(table, count, tiles, store1, store2, scalars, partial);
  check_launch("adamw");
  ErrorSums* const totals[] = {&errors->moment1, &errors->moment2, &errors->update};
  add_error_sums(partial, blocks, 3, totals, "adamw", stream);
}

}  // namespace coat::kernels::cuda
