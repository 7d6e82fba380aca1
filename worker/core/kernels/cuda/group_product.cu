#include <cudaTypedefs.h>

#include <algorithm>
#include <stdexcept>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/group_product.h"
#include "worker/core/kernels/cuda/hopper.cuh"
#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {
namespace {

using hopper::Barrier;

// A block's tile of the result: 64 rows for each of kConsumers warpgroups. A further warpgroup fetches.
constexpr int kConsumers = 3, kWarpgroupRows = 64, kTileRows = kConsumers * kWarpgroupRows, kTileCols = 128;
constexpr int kThreads = (kConsumers + 1) * hopper::kWarpgroup;
constexpr int kSummed = 128, kInstruction = 32;  // products of a stage, and of one instruction
constexpr int kStages = 4;
constexpr int kGroup = GroupedE4M3::group, kTileGroups = kTileCols / kGroup;
// Tiles one above the other that run side by side, so that they share what they read in the second-level
// cache.
constexpr int kBand = 12;

struct Stage {
  std::uint8_t a[kTileRows][kSummed], b[kTileCols][kSummed];
};
// A row of codes and its scales on their way out; 144 bytes, so that eight rows lie in different banks.
struct OutRow {
  std::uint8_t codes[kTileCols];
  std::uint16_t scales[kTileGroups];
};
struct Shared {
  Stage stage[kStages];  // on a border of 1024 bytes
  OutRow out[kConsumers][kWarpgroupRows];
  Barrier full[kStages], empty[kStages];
};

struct Tile {
  int row, col;
};

// The tiles of a result, band by band, each column by column.
struct Tiles {
  int down, across;
  __device__ int count() const { return down * across; }
  __device__ Tile at(int index) const {
    const int band = index / (kBand * across), first = band * kBand;
    const int height = min(kBand, down - first), place = index - band * kBand * across;
    return {(first + place % height) * kTileRows, place / height * kTileCols};
  }
};

// Walks over the stages, which are used in turn.
struct StageWalk {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

__device__ void fetch_tiles(Shared& shared, const CUtensorMap& a, const CUtensorMap& b, const Tiles& tiles,
                            int stages) {
  StageWalk at;
  for (int index = static_cast<int>(blockIdx.x); index < tiles.count();
       index += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(index);
    for (int i = 0; i < stages; ++i, at.advance()) {
      Stage& stage = shared.stage[at.stage];
      Barrier& full = shared.full[at.stage];
      shared.empty[at.stage].wait(at.parity ^ 1);
      full.arrive_and_announce(sizeof(Stage));
      hopper::start_box(stage.a, a, i * kSummed, tile.row, full);
      hopper::start_box(stage.b, b, i * kSummed, tile.col, full);
    }
  }
}

// The sum over all stages, each added in FP32 when it is whole.
__device__ void sum_tile(Shared& shared, int warpgroup, int stages, StageWalk& at,
                         hopper::Results64x128& sum) {
#pragma unroll
  for (float& x : sum.x) x = 0.0f;
  hopper::Results64x128 part;
  for (int i = 0; i < stages; ++i, at.advance()) {
    const Stage& stage = shared.stage[at.stage];
    shared.full[at.stage].wait(at.parity);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < kSummed; k += kInstruction) {
      hopper::multiply_e4m3(part, hopper::operand_in_swizzled_rows(stage.a[warpgroup * kWarpgroupRows], k),
                            hopper::operand_in_swizzled_rows(stage.b, k), k > 0);
    }
    hopper::end_products();
    if (threadIdx.x % kWarp == 0) shared.empty[at.stage].arrive();
#pragma unroll
    for (int j = 0; j < 64; ++j) sum.x[j] += part.x[j];
  }
}

// Of a row's part of each group, in four neighbouring threads: the largest of groups q and q + 4 of the whole
// row, in the q-th.
struct LargestOfTwo {
  std::uint32_t group[kTileGroups / 4];
};
__device__ LargestOfTwo largest_of_groups(const std::uint32_t (&own)[kTileGroups]) {
  const bool odd = threadIdx.x % 2 == 1, upper = threadIdx.x % 4 >= 2;
  const auto exchanged = [](bool second, std::uint32_t a, std::uint32_t b, int other) {
    return max(second ? b : a, __shfl_xor_sync(kWholeWarp, second ? a : b, other));
  };
  std::uint32_t pairs[kTileGroups / 2];
#pragma unroll
  for (int i = 0; i < kTileGroups / 2; ++i) pairs[i] = exchanged(odd, own[2 * i], own[2 * i + 1], 1);
  LargestOfTwo largest;
#pragma unroll
  for (int i = 0; i < kTileGroups / 4; ++i) {
    largest.group[i] = exchanged(upper, pairs[2 * i], pairs[2 * i + 1], 2);
  }
  return largest;
}

// Quantizes a row, of which a thread has x[0], x[1], x[4], x[5], x[8], ... : two elements of each half of a
// group; its three neighbours have the others.
__device__ void quantize_row(const float* x, float scale, const ScaleRule& rule, OutRow& out) {
  float v[kTileGroups][4];
  std::uint32_t own[kTileGroups];
#pragma unroll
  for (int group = 0; group < kTileGroups; ++group) {
    own[group] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[group][i] = x[8 * group + i % 2 + 4 * (i / 2)] * scale;
      own[group] = max(own[group], magnitude_bits(v[group][i]));
    }
  }
  const LargestOfTwo largest = largest_of_groups(own);
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  float inverse[kTileGroups / 4];
#pragma unroll
  for (int i = 0; i < kTileGroups / 4; ++i) {
    const float group_scale =
        scale_from_amax(__uint_as_float(largest.group[i]), max_of(Format::kE4M3), rule.added);
    inverse[i] = __frcp_rn(code_scale(group_scale, ScaleFormat::kBf16, rule));
    out.scales[4 * i + quarter] = encode_bf16(group_scale);
  }
#pragma unroll
  for (int group = 0; group < kTileGroups; ++group) {
    const float by = __shfl_sync(kWholeWarp, inverse[group / 4], group % 4, 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = make_float2(v[group][2 * half] * by, v[group][2 * half + 1] * by);
      *reinterpret_cast<__nv_fp8x2_storage_t*>(out.codes + group * kGroup + 8 * half + 2 * quarter) =
          __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
  }
}

// By a warpgroup: its rows of the tile, which lie in `staged`.
__device__ void write_rows(const OutRow* staged, const GroupedE4M3& out, std::int64_t row0,
                           std::int64_t col0) {
  constexpr int kBytes = 16, kPieces = kTileCols / kBytes;
  const int thread = static_cast<int>(threadIdx.x) % hopper::kWarpgroup;
#pragma unroll
  for (int i = thread; i < kWarpgroupRows * kPieces; i += hopper::kWarpgroup) {
    const int row = i / kPieces, piece = i % kPieces;
    const std::int64_t col = col0 + piece * kBytes;
    if (row0 + row >= out.rows || col >= out.cols) continue;
    *reinterpret_cast<uint4*>(static_cast<std::uint8_t*>(out.data) + (row0 + row) * out.cols + col) =
        *reinterpret_cast<const uint4*>(staged[row].codes + piece * kBytes);
    static_cast<std::uint16_t*>(out.scale)[(row0 + row) * out.groups_per_row + col / kGroup] =
        staged[row].scales[piece];
  }
  static_assert(kBytes == kGroup);
}

__global__ void __launch_bounds__(kThreads, 1)
    group_product_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                         const float* a_scale, const float* b_scale, GroupedE4M3 out, Tiles tiles,
                         int stages) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kConsumers * hopper::kWarpgroup / kWarp);
    }
    Barrier::make_visible();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / hopper::kWarpgroup;
  if (warpgroup == kConsumers) {
    hopper::give_up_registers<32>();
    if (threadIdx.x % hopper::kWarpgroup == 0) fetch_tiles(shared, a, b, tiles, stages);
  } else {
    hopper::take_registers<160>();
    const float scale = (a_scale != nullptr ? *a_scale : 1.0f) * (b_scale != nullptr ? *b_scale : 1.0f);
    const int lane = static_cast<int>(threadIdx.x) % hopper::kWarpgroup,
              row = lane / kWarp * 16 + lane % kWarp / 4;
    OutRow* const staged = shared.out[warpgroup];
    StageWalk at;
    for (int index = static_cast<int>(blockIdx.x); index < tiles.count();
         index += static_cast<int>(gridDim.x)) {
      const Tile tile = tiles.at(index);
      hopper::Results64x128 sum;
      sum_tile(shared, warpgroup, stages, at, sum);
      quantize_row(sum.x, scale, out.rule, staged[row]);
      quantize_row(sum.x + 2, scale, out.rule, staged[row + 8]);
      hopper::meet(1 + warpgroup);
      write_rows(staged, out, tile.row + warpgroup * kWarpgroupRows, tile.col);
      hopper::meet(1 + warpgroup);
    }
  }
}

// The rows of an operand as the copy engine reads them, `rows` of one stage at a time; beyond the edges it
// gives zeros.
CUtensorMap map_of(const BlasOperand& operand, std::int64_t outer, std::int64_t summed, std::uint32_t rows) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status),
        "gemm");
    if (status != cudaDriverEntryPointSuccess)
      throw std::runtime_error("gemm: the driver has no tensor maps");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(summed), static_cast<cuuint64_t>(outer)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(operand.stride)};
  const cuuint32_t box[] = {kSummed, rows}, steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(operand.data), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::logic_error("gemm: an operand that the copy engine cannot read");
  return map;
}

int parts(std::int64_t size, int part) { return static_cast<int>((size + part - 1) / part); }

}  // namespace

bool suits_group_product(const BlasProduct& product, const DeviceMatrix& out) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates have 32 bits
  const auto suits = [](const BlasOperand& operand) {
    return operand.format == Format::kE4M3 && operand.summed_is_contiguous;
  };
  const bool on_border = reinterpret_cast<std::uintptr_t>(out.data) % sizeof(uint4) == 0;
  return suits(product.a) && suits(product.b) && is_grouped(out) && on_border && product.k > 0 &&
         product.m < kMost && product.n < kMost && product.k < kMost;
}

void run_group_product(const BlasProduct& product, const DeviceMatrix& out, cudaStream_t stream) {
  const Tiles tiles{parts(product.m, kTileRows), parts(out.cols, kTileCols)};
  const CUtensorMap a = map_of(product.a, product.m, product.k, kTileRows),
                    b = map_of(product.b, product.n, product.k, kTileCols);
  constexpr int kBytes = static_cast<int>(sizeof(Shared));
  check(cudaFuncSetAttribute(group_product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "gemm");
  const int blocks = std::min(DeviceState::current().multiprocessors(), tiles.down * tiles.across);
  group_product_kernel<<<blocks, kThreads, kBytes, stream>>>(
      a, b, product.a.scale, product.b.scale, GroupedE4M3(out), tiles, parts(product.k, kSummed));
  check_launch("gemm");
}

}  // namespace coat::kernels::cuda
