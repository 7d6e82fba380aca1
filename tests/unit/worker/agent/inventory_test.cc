#include "worker/agent/inventory.h"

#include <thread>

#include <gtest/gtest.h>

#include "proto/common/clock.h"
#include "worker/agent/process.h"

namespace coat::agent {
namespace {

TEST(InventoryTest, OneCpuDeviceWhereThereIsNoGpu) {
  Inventory inventory({.worker_id = "w"}, nullptr, real_clock());
  const auto devices = inventory.devices();
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].kind(), v1::Device::CPU);
  EXPECT_EQ(devices[0].health(), v1::Device::OK);
  EXPECT_EQ(devices[0].model(), processor_name());
  EXPECT_GT(devices[0].memory_bytes(), 0);
  EXPECT_LT(devices[0].memory_bytes(), machine_memory_bytes());
  EXPECT_EQ(inventory.trainer_name(0), "cpu:0");
  EXPECT_EQ(inventory.threads(0), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(InventoryTest, SeveralCpuDevicesShareTheMachine) {
  Inventory one({.cpu_devices = 1, .worker_id = "w"}, nullptr, real_clock());
  Inventory two({.cpu_devices = 2, .worker_id = "w"}, nullptr, real_clock());
  ASSERT_EQ(two.devices().size(), 2U);
  EXPECT_EQ(two.devices()[1].index(), 1);
  EXPECT_NE(two.devices()[0].uuid(), two.devices()[1].uuid());
  EXPECT_EQ(two.devices()[0].memory_bytes(), one.devices()[0].memory_bytes() / 2);
  EXPECT_EQ(two.threads(1), std::max(1, one.threads(0) / 2));
  EXPECT_THROW(two.trainer_name(2), std::out_of_range);
}

TEST(InventoryTest, TheMemoryLimitIsEachDevices) {
  Inventory inventory({.cpu_devices = 2, .memory_limit_bytes = 123, .worker_id = "w"}, nullptr, real_clock());
  for (const auto& device : inventory.devices()) EXPECT_EQ(device.memory_bytes(), 123);
}

TEST(InventoryTest, TheDeviceOfAnEstimate) {
  Inventory inventory({.cpu_devices = 1, .worker_id = "w"}, nullptr, real_clock());
  EXPECT_EQ(inventory.largest("auto"), 0);
  EXPECT_EQ(inventory.largest("cpu"), 0);
  EXPECT_FALSE(inventory.largest("cuda"));
  Inventory none({.cpu_devices = 0, .worker_id = "w"}, nullptr, real_clock());
  EXPECT_FALSE(none.largest("auto"));
}

TEST(InventoryTest, ADeviceIsSuspectWhileAnUnkillableProcessLives) {
  Inventory inventory({.cpu_devices = 2, .worker_id = "w"}, nullptr, real_clock());
  const pid_t pid = spawn({.arguments = {"/bin/sleep", "1000"}});
  inventory.report_survivors({1}, {process_entry(pid)->identity});
  EXPECT_TRUE(inventory.check());
  EXPECT_EQ(inventory.devices()[0].health(), v1::Device::OK);
  EXPECT_EQ(inventory.devices()[1].health(), v1::Device::SUSPECT);
  EXPECT_NE(inventory.devices()[1].health_message().find(std::to_string(pid)), std::string::npos);
  EXPECT_FALSE(inventory.check());
  ::kill(pid, SIGKILL);
  reap(pid);
  EXPECT_TRUE(inventory.check());
  EXPECT_EQ(inventory.devices()[1].health(), v1::Device::OK);
  EXPECT_EQ(inventory.devices()[1].health_message(), "");
}

TEST(InventoryTest, XidsOfApplicationsSayNothingAboutTheDevice) {
  for (const std::uint64_t xid : {13U, 31U, 43U, 45U, 68U, 109U})
    EXPECT_EQ(classify_xid(xid), XidClass::kApplication);
  for (const std::uint64_t xid : {48U, 79U, 95U}) EXPECT_EQ(classify_xid(xid), XidClass::kFatal);
  EXPECT_EQ(classify_xid(94), XidClass::kSuspect);
  EXPECT_EQ(classify_xid(4711), XidClass::kSuspect);
}

TEST(NvmlTest, TellsWhyThereIsNoGpu) {
  std::string why;
  const auto nvml = Nvml::load(&why);
  if (!nvml) {
    EXPECT_FALSE(why.empty());
    return;
  }
  ASSERT_FALSE(nvml->gpus().empty());
  for (const GpuInfo& gpu : nvml->gpus()) {
    EXPECT_GT(gpu.total_bytes, 0);
    EXPECT_FALSE(gpu.uuid.empty());
    EXPECT_FALSE(nvml->query_error(gpu.index));
  }
}

}  // namespace
}  // namespace coat::agent
