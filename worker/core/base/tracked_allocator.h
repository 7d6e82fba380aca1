// Counts the bytes that tensors hold on the CPU, so that the memory ledger can be checked and a limit kept.
#pragma once

#include <cstdint>

namespace coat::cpu_memory {

// Puts the counting allocator in front of libtorch's own, for the rest of the program. Tensors made before
// are not counted. Idempotent. Every function here may be called from any thread at any time.
void install();

// Bytes asked for by live tensors: without the allocator's own rounding, and without what BLAS and the C++
// heap hold.
std::int64_t current();
// The largest current() since the program's start or the latest reset_peak().
std::int64_t peak();
void reset_peak();

// An allocation that would lift current() above `bytes` throws OutOfDeviceMemoryError. 0: no limit, which is
// the default.
void set_limit(std::int64_t bytes);

}  // namespace coat::cpu_memory
