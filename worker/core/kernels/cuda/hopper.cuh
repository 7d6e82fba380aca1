// Hopper's own instructions: barriers that count bytes, the copy engine, products by a warpgroup. Device code
// only.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace coat::kernels::cuda::hopper {

inline constexpr int kWarpgroup = 128;  // threads

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// A barrier in shared memory. Its phases are numbered; one ends when all arrivals and all bytes that were
// announced are there.
class Barrier {
 public:
  // By one thread, before make_visible() and a barrier of the block.
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ static void make_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  __device__ void arrive_and_announce(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                 : "memory");
  }
  // Until the phase of that parity is over.
  __device__ void wait(std::uint32_t parity) {
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}\n"
          : "=r"(done)
          : "r"(address()), "r"(parity)
          : "memory");
    }
  }
  __device__ std::uint32_t address() { return shared_address(&word_); }

 private:
  std::uint64_t word_;
};

// Starts the copy of a box of a two-dimensional array; its bytes are counted by `barrier`. By one thread.
__device__ inline void start_box(void* to, const CUtensorMap& from, int col, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared_address(to)),
      "l"(&from), "r"(col), "r"(row), "r"(barrier.address())
      : "memory");
}

// Rows of 128 bytes in shared memory as the copy engine lays them out with its 128-byte swizzle, on a border
// of 1024 bytes: what products read. `summed_bytes` within a row.
__device__ inline std::uint64_t operand_in_swizzled_rows(const void* rows, int summed_bytes) {
  constexpr std::uint64_t kEightRows = 1024 >> 4, kSwizzle128 = std::uint64_t{1} << 62;
  const std::uint64_t start =
      (shared_address(rows) + static_cast<std::uint32_t>(summed_bytes)) >> 4 & 0x3FFFu;
  return kSwizzle128 | kEightRows << 32 | std::uint64_t{1} << 16 | start;
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// A warpgroup's 64 x 128 results: of thread t, x[4 j + i] lies in row 16 (t / 32) + t % 32 / 4 + 8 (i / 2)
// and column 8 j + 2 (t % 4) + i % 2.
struct Results64x128 {
  float x[64];
};

// d = a b, or d += a b, of 64 x 32 and 128 x 32 E4M3 codes.
__device__ inline void multiply_e4m3(Results64x128& d, std::uint64_t a, std::uint64_t b, bool add) {
#define COAT_FOUR(i) "+f"(d.x[i]), "+f"(d.x[i + 1]), "+f"(d.x[i + 2]), "+f"(d.x[i + 3])
#define COAT_SIXTEEN(i) COAT_FOUR(i), COAT_FOUR(i + 4), COAT_FOUR(i + 8), COAT_FOUR(i + 12)
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;\n"
      "}\n"
      : COAT_SIXTEEN(0), COAT_SIXTEEN(16), COAT_SIXTEEN(32), COAT_SIXTEEN(48)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
#undef COAT_SIXTEEN
#undef COAT_FOUR
}

// Registers a thread, of a whole warpgroup; multiples of 8.
template <int kRegisters>
__device__ inline void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A barrier of one warpgroup; `name` is 1 to 15.
__device__ inline void meet(int name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

}  // namespace coat::kernels::cuda::hopper
