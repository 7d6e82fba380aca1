// The counting allocator: what it counts, its peak, and its limit.
#include "worker/core/base/tracked_allocator.h"

#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "worker/core/base/error.h"

namespace coat {
namespace {

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::TensorOptions().dtype(at::kByte)); }

class TrackedAllocator : public ::testing::Test {
 protected:
  TrackedAllocator() { cpu_memory::install(); }
  ~TrackedAllocator() override { cpu_memory::set_limit(0); }
  const std::int64_t start_ = (cpu_memory::install(), cpu_memory::current());
};

TEST_F(TrackedAllocator, CountsTensorsWhileTheyLive) {
  {
    const at::Tensor a = bytes(1000);
    EXPECT_EQ(cpu_memory::current() - start_, 1000);
    const at::Tensor view = a.narrow(0, 10, 100);
    EXPECT_EQ(cpu_memory::current() - start_, 1000);
    const at::Tensor empty = bytes(0);
    EXPECT_EQ(cpu_memory::current() - start_, 1000);
  }
  EXPECT_EQ(cpu_memory::current(), start_);
}

TEST_F(TrackedAllocator, KeepsThePeakUntilReset) {
  cpu_memory::reset_peak();
  bytes(5000);
  const at::Tensor small = bytes(70);
  EXPECT_EQ(cpu_memory::peak() - start_, 5000);
  cpu_memory::reset_peak();
  EXPECT_EQ(cpu_memory::peak() - start_, 70);
}

TEST_F(TrackedAllocator, BlocksKeepTheAlignmentOfLibtorch) {
  for (const std::int64_t size : {1, 63, 64, 65, 4097}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes(size).data_ptr()) % 64, 0u) << size;
  }
}

TEST_F(TrackedAllocator, RefusesWhatWouldPassTheLimitAndGoesOn) {
  const at::Tensor held = bytes(600);
  cpu_memory::set_limit(start_ + 1000);
  EXPECT_THROW(bytes(401), OutOfDeviceMemoryError);
  EXPECT_EQ(cpu_memory::current() - start_, 600);
  const at::Tensor fits = bytes(400);
  EXPECT_EQ(cpu_memory::current() - start_, 1000);
}

TEST_F(TrackedAllocator, CountsFromEveryThread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 1000; ++round) bytes(128);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cpu_memory::current(), start_);
}

}  // namespace
}  // namespace coat
