#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/adamw_fast.h"
#include "worker/core/kernels/cuda/adamw_plain.h"
#include "worker/core/kernels/cuda/adamw_tile.cuh"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/error_sums.h"
#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels::cuda {
namespace {

using namespace adamw_parts;

constexpr int kThreads = 256;
constexpr std::int64_t kTile = std::int64_t{kThreads} * kQuad;  // no group straddles two

// A block takes tiles of the tensors, numbered through. measured: partial[3 * block] and the next two are the
// errors of m, v and u. A scale of NaN: nothing is written, the errors are 0.
template <bool kMeasured>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ AdamWLaunch launch, ErrorSums* partial) {
  __shared__ GroupRange exchange[kThreads / kWarp];
  const float factor = gradient_factor(launch.scalars);
  const std::int64_t end = isnan(factor) ? 0 : launch.tiles;
  AdamWErrors errors;
  int index = 0;
  for (std::int64_t tile = blockIdx.x; tile < end; tile += gridDim.x) {
    while (index + 1 < launch.count && launch.tensors[index + 1].first_tile <= tile) ++index;
    const TensorEntry& t = launch.tensors[index];
    const std::int64_t first = (tile - t.first_tile) * kTile + std::int64_t{threadIdx.x} * kQuad;
    step_quad<kMeasured>(launch, t, first, factor, exchange, &errors);
  }
  if (kMeasured) {
    store_block_sums(errors.moment1, partial + 3 * blockIdx.x);
    store_block_sums(errors.moment2, partial + 3 * blockIdx.x + 1);
    store_block_sums(errors.update, partial + 3 * blockIdx.x + 2);
  }
}

MomentStore store_of(const MomentFormat& format, MomentUse use) {
  require_usable(format, use);
  MomentStore store;
  store.code = format.code;
  if (!format.is_quantized()) return store;
  if (format.group < kQuad || format.group > kTile ||
      !std::has_single_bit(static_cast<unsigned>(format.group))) {
    throw UnsupportedError("adamw: groups of " + std::to_string(format.group) +
                           " elements have no CUDA version; use a power of two from 4 to 1024");
  }
  const MomentTable& table = MomentTable::of(format.code);
  const MomentTables tables = DeviceState::current().moment_tables(format.code);
  store.group = format.group;
  store.expand = format.expand;
  store.bf16_amax = format.amax_format == Format::kBf16;
  store.stochastic = format.rounding == Rounding::kStochastic;
  store.width = table.width();
  store.last = table.count() - 1;
  store.first_row = table.first_row();
  store.values = tables.values;
  store.boundaries = tables.boundaries;
  store.exponents = tables.exponents;
  if (is_octave(format.code)) {
    store.octaves = DeviceState::current().octave_tables(octave_top(format.code));
    store.reach = DeviceState::current().octave_reach(octave_top(format.code));
    return store;
  }
  store.limits = DeviceState::current().row_limits(format);
  store.log_bound = static_cast<float>(16.0 * std::log2(format.range_bound));
  return store;
}

bool on_border(const void* pointer, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<unsigned>(bytes) == 0;
}

// Four elements of each array at once.
bool quads_are_aligned(const AdamWTensor& tensor, const AdamWArgs& args) {
  const auto border = [](const MomentFormat& format) { return format.is_quantized() ? kQuad : 4 * kQuad; };
  const int value = args.weights == WeightFormat::kFp32 ? 4 * kQuad : 2 * kQuad;
  return tensor.first_index % kQuad == 0 && on_border(tensor.value, value) &&
         on_border(tensor.residual, kQuad) && on_border(tensor.gradient, bytes_of(args.gradient) * kQuad) &&
         on_border(tensor.m.data, border(args.moment1)) && on_border(tensor.v.data, border(args.moment2));
}

// ... and 16 bytes, counted in 32 bits, of elements whose random numbers are whole blocks'.
bool chunks_are_aligned(const AdamWTensor& tensor) {
  constexpr int kChunkBytes = 16;
  return tensor.elements < std::int64_t{1} << 33 && tensor.first_index % RoundingPlace::kElements == 0 &&
         on_border(tensor.value, kChunkBytes) && on_border(tensor.residual, kChunkBytes) &&
         on_border(tensor.gradient, kChunkBytes) && on_border(tensor.m.data, kChunkBytes) &&
         on_border(tensor.v.data, kChunkBytes);
}

std::vector<TensorEntry> entries_of(const AdamWArgs& args, std::int64_t tile_elements, std::int64_t& tiles) {
  std::vector<TensorEntry> entries;
  for (const AdamWTensor& tensor : args.tensors) {
    if (tensor.elements <= 0) continue;
    const bool aligned = quads_are_aligned(tensor, args);
    entries.push_back(
        {tensor.value,
         tensor.residual,
         tensor.gradient,
         tensor.elements,
         {{tensor.m.data, tensor.m.amax, tensor.m.row}, {tensor.v.data, tensor.v.amax, tensor.v.row}},
         tensor.first_index,
         tiles,
         tensor.id,
         value_kept(args, tensor.decay),
         aligned,
         aligned && chunks_are_aligned(tensor) ? tensor.elements / adamw_fast::kTile : 0});
    tiles += (tensor.elements + tile_elements - 1) / tile_elements;
  }
  return entries;
}

StepScalars scalars_of(const AdamWArgs& args) {
  const UpdateScalars update = update_scalars(args);
  StepScalars scalars{args.gradient_scale, update.beta1, update.beta2, update.rest1, update.square,
                      update.inverse_step, update.eps,   args.seed,    args.step,    {}};
  PhiloxKey key = PhiloxStream{args.seed, args.step, 0}.key();
  for (PhiloxKey& round : scalars.keys) {
    round = key;
    key = philox_next_key(key);
  }
  return scalars;
}

const TensorEntry* upload(const std::vector<TensorEntry>& entries, cudaStream_t stream) {
  auto* table = DeviceState::current().tensor_table().elements<TensorEntry>(
      static_cast<std::int64_t>(entries.size()), "adamw");
  check(cudaMemcpyAsync(table, entries.data(), entries.size() * sizeof(TensorEntry), cudaMemcpyHostToDevice,
                        stream),
        "adamw");
  return table;
}

void launch_general(const AdamWLaunch& launch, AdamWErrors* errors, cudaStream_t stream) {
  const std::int64_t most = std::int64_t{DeviceState::current().multiprocessors()} * 8;
  const int blocks = static_cast<int>(launch.tiles < most ? launch.tiles : most);
  if (errors == nullptr) {
    adamw_kernel<false><<<blocks, kThreads, 0, stream>>>(launch, nullptr);
    return check_launch("adamw");
  }
  ErrorSums* partial = DeviceState::current().partial_sums().elements<ErrorSums>(3 * blocks, "adamw");
  adamw_kernel<true><<<blocks, kThreads, 0, stream>>>(launch, partial);
  check_launch("adamw");
  ErrorSums* const totals[] = {&errors->moment1, &errors->moment2, &errors->update};
  add_error_sums(partial, blocks, 3, totals, "adamw", stream);
}

}  // namespace

void adamw(const AdamWArgs& args, AdamWErrors* errors, cudaStream_t stream) {
  if (args.gradient != Format::kFp32 && args.gradient != Format::kBf16) {
    throw std::logic_error("adamw: gradients must be FP32 or BF16");
  }
  AdamWLaunch launch{};
  launch.weights = args.weights;
  launch.gradient = args.gradient;
  launch.store1 = store_of(args.moment1, MomentUse::kFirst);
  launch.store2 = store_of(args.moment2, MomentUse::kSecond);
  launch.scalars = scalars_of(args);
  launch.measured_eps = double{args.eps};
  const bool fast = errors == nullptr && adamw_fast::suits(launch);
  const std::vector<TensorEntry> entries = entries_of(args, fast ? adamw_fast::kTile : kTile, launch.tiles);
  if (entries.empty()) return;
  launch.tensors = upload(entries, stream);
  launch.count = static_cast<int>(entries.size());
  if (fast) return adamw_fast::launch(launch, stream);
  static_assert(adamw_plain::kTile == kTile);
  if (errors == nullptr && adamw_plain::suits(launch)) return adamw_plain::launch(launch, stream);
  launch_general(launch, errors, stream);
}

}  // namespace coat::kernels::cuda
