#include "worker/core/base/tracked_allocator.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "worker/core/base/error.h"

namespace coat::cpu_memory {
namespace {

std::atomic<std::int64_t> current_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};
std::atomic<std::int64_t> limit_bytes{0};

// In front of every block lies its size; as long as libtorch's alignment, so that the block behind it keeps
// it.
constexpr std::size_t kHeaderBytes = 64;

void refuse(std::size_t wanted, std::int64_t held, std::int64_t limit) {
  throw OutOfDeviceMemoryError(
      "out of device memory: " + std::to_string(wanted) + " bytes more than the " + std::to_string(held) +
      " held would pass the limit of " + std::to_string(limit) +
      " bytes; lower training.micro_batch or training.sequence_length, or raise the limit");
}

void note_allocated(std::size_t bytes) {
  const auto signed_bytes = static_cast<std::int64_t>(bytes);
  const std::int64_t now = current_bytes.fetch_add(signed_bytes) + signed_bytes;
  const std::int64_t limit = limit_bytes.load(std::memory_order_relaxed);
  if (limit > 0 && now > limit) {
    current_bytes.fetch_sub(signed_bytes);
    refuse(bytes, now - signed_bytes, limit);
  }
  std::int64_t seen = peak_bytes.load(std::memory_order_relaxed);
  while (now > seen && !peak_bytes.compare_exchange_weak(seen, now)) {
  }
}

void release(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeaderBytes;
  std::size_t bytes = 0;
  std::memcpy(&bytes, block, sizeof bytes);
  current_bytes.fetch_sub(static_cast<std::int64_t>(bytes));
  c10::free_cpu(block);
}

class TrackedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    note_allocated(bytes);
    char* block = nullptr;
    try {
      block = static_cast<char*>(c10::alloc_cpu(bytes + kHeaderBytes));
    } catch (...) {
      current_bytes.fetch_sub(static_cast<std::int64_t>(bytes));
      throw;
    }
    std::memcpy(block, &bytes, sizeof bytes);
    char* data = block + kHeaderBytes;
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// Every step asks for the same blocks again. Given back to the system between, they would be cleared and
// mapped anew each time, which costs a step 4 to 8 %; so the heap keeps up to a gigabyte of free
// memory.
void keep_freed_memory() {
  constexpr int kLargestHeapBlock = 32 << 20;
  constexpr int kKeptFree = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargestHeapBlock);
  mallopt(M_TRIM_THRESHOLD, kKeptFree);
}

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors of static lifetime may outlive any order of destructors.
    static auto* allocator = new TrackedAllocator();
    constexpr std::uint8_t kHighestPriority = 100;
    c10::SetCPUAllocator(allocator, kHighestPriority);
    keep_freed_memory();
  });
}

std::int64_t current() { return current_bytes.load(); }
std::int64_t peak() { return peak_bytes.load(); }
void reset_peak() { peak_bytes.store(current_bytes.load()); }
void set_limit(std::int64_t bytes) { limit_bytes.store(bytes); }

}  // namespace coat::cpu_memory
