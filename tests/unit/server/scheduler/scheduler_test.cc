#include "server/scheduler/scheduler.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace coat::scheduler {
namespace {

const SteadyTime kNow{std::chrono::hours(10)};

PendingJob job(const std::string& name, std::int64_t order, int devices = 1,
               WantedDevice device = WantedDevice::kAuto, std::int64_t bytes = 100) {
  PendingJob job;
  job.name = name;
  job.order = order;
  job.devices = devices;
  job.device = device;
  job.bytes_per_device = bytes;
  return job;
}

OfferedWorker worker(const std::string& name, v1::Device::Kind kind, int count, int busy = 0,
                     std::int64_t bytes = 1000) {
  OfferedWorker worker;
  worker.name = name;
  for (int i = 0; i < count; ++i) worker.devices.push_back({i, kind, bytes, true, i < busy});
  return worker;
}

v1::PendingStatus::Reason reason(const Decision& decision, const std::string& name) {
  const auto found = decision.waiting.find(name);
  return found == decision.waiting.end() ? v1::PendingStatus::REASON_UNSPECIFIED : found->second.reason();
}

TEST(Scheduler, NobodyConnected) {
  const Decision decision = schedule({{job("a", 1)}, {}}, kNow);
  EXPECT_TRUE(decision.placements.empty());
  EXPECT_EQ(reason(decision, "a"), v1::PendingStatus::NO_WORKER);
}

TEST(Scheduler, FirstComeFirstServedWhateverTheOrderOfTheInput) {
  const Decision decision = schedule({{job("b", 2), job("a", 1)}, {worker("w", v1::Device::CPU, 1)}}, kNow);
  ASSERT_EQ(decision.placements.size(), 1U);
  EXPECT_EQ(decision.placements[0].job, "a");
  EXPECT_EQ(decision.placements[0].devices, std::vector<int>{0});
  EXPECT_EQ(reason(decision, "b"), v1::PendingStatus::DEVICES_BUSY);
  EXPECT_EQ(decision.waiting.at("b").queue_position(), 1);
}

TEST(Scheduler, AGangIsPlacedWholeOnOneWorker) {
  const Snapshot snapshot{{job("a", 1, 3)},
                          {worker("v", v1::Device::CUDA, 4, 2), worker("w", v1::Device::CUDA, 4, 1)}};
  const Decision decision = schedule(snapshot, kNow);
  ASSERT_EQ(decision.placements.size(), 1U);
  EXPECT_EQ(decision.placements[0].worker, "w");
  EXPECT_EQ(decision.placements[0].devices, (std::vector<int>{1, 2, 3}));
}

TEST(Scheduler, TwoHalvesOnTwoWorkersAreNoGang) {
  const Snapshot snapshot{{job("a", 1, 2)},
                          {worker("v", v1::Device::CUDA, 2, 1), worker("w", v1::Device::CUDA, 2, 1)}};
  const Decision decision = schedule(snapshot, kNow);
  EXPECT_TRUE(decision.placements.empty());
  EXPECT_EQ(reason(decision, "a"), v1::PendingStatus::DEVICES_BUSY);
  EXPECT_EQ(decision.waiting.at("a").details().at("devices_free"), "1");
}

TEST(Scheduler, TheHeadIsNotOvertaken) {
  const Snapshot snapshot{{job("big", 1, 4), job("small", 2, 1)}, {worker("w", v1::Device::CUDA, 4, 2)}};
  const Decision decision = schedule(snapshot, kNow);
  EXPECT_TRUE(decision.placements.empty());
  EXPECT_EQ(reason(decision, "big"), v1::PendingStatus::DEVICES_BUSY);
  EXPECT_EQ(reason(decision, "small"), v1::PendingStatus::BEHIND_IN_QUEUE);
  EXPECT_EQ(decision.waiting.at("small").queue_position(), 2);
  EXPECT_NE(decision.waiting.at("small").message().find("big"), std::string::npos);
}

TEST(Scheduler, AnotherKindOfDeviceIsNotHeldUp) {
  const Snapshot snapshot{{job("gpu", 1, 2, WantedDevice::kCuda), job("cpu", 2, 1, WantedDevice::kCpu)},
                          {worker("v", v1::Device::CUDA, 2, 1), worker("w", v1::Device::CPU, 1)}};
  const Decision decision = schedule(snapshot, kNow);
  ASSERT_EQ(decision.placements.size(), 1U);
  EXPECT_EQ(decision.placements[0].job, "cpu");
}

TEST(Scheduler, WhatCanNeverFitHoldsUpNobody) {
  const Snapshot snapshot{{job("gang", 1, 8), job("fat", 2, 1, WantedDevice::kAuto, 5000), job("ok", 3)},
                          {worker("w", v1::Device::CUDA, 4)}};
  const Decision decision = schedule(snapshot, kNow);
  EXPECT_EQ(reason(decision, "gang"), v1::PendingStatus::NEVER_FITS);
  EXPECT_EQ(reason(decision, "fat"), v1::PendingStatus::NEVER_FITS);
  EXPECT_EQ(decision.waiting.at("fat").details().at("bytes_wanted"), "5000");
  EXPECT_EQ(decision.waiting.at("fat").details().at("device_bytes"), "1000");
  EXPECT_NE(decision.waiting.at("fat").message().find("5000 bytes"), std::string::npos);
  ASSERT_EQ(decision.placements.size(), 1U);
  EXPECT_EQ(decision.placements[0].job, "ok");
}

TEST(Scheduler, AJobThatFitsWhenIdleIsBusyNotNever) {
  const Decision decision = schedule({{job("a", 1, 2)}, {worker("w", v1::Device::CPU, 2, 2)}}, kNow);
  EXPECT_EQ(reason(decision, "a"), v1::PendingStatus::DEVICES_BUSY);
}

TEST(Scheduler, TheWrongKindNeverFits) {
  const Decision decision =
      schedule({{job("a", 1, 1, WantedDevice::kCuda)}, {worker("w", v1::Device::CPU, 2)}}, kNow);
  EXPECT_EQ(reason(decision, "a"), v1::PendingStatus::NEVER_FITS);
  EXPECT_NE(decision.waiting.at("a").message().find("cuda"), std::string::npos);
}

TEST(Scheduler, FaultedDevicesAreNotOffered) {
  OfferedWorker faulted = worker("w", v1::Device::CUDA, 2);
  faulted.devices[0].healthy = false;
  const Decision one = schedule({{job("a", 1, 1)}, {faulted}}, kNow);
  ASSERT_EQ(one.placements.size(), 1U);
  EXPECT_EQ(one.placements[0].devices, std::vector<int>{1});
  const Decision two = schedule({{job("a", 1, 2)}, {faulted}}, kNow);
  EXPECT_EQ(reason(two, "a"), v1::PendingStatus::NEVER_FITS);
  EXPECT_NE(two.waiting.at("a").message().find("not faulted"), std::string::npos);
}

TEST(Scheduler, AutoMeansCudaWhereThereIsOne) {
  OfferedWorker mixed = worker("w", v1::Device::CUDA, 1);
  mixed.devices.push_back({1, v1::Device::CPU, 1000, true, false});
  const Decision decision = schedule({{job("a", 1), job("b", 2)}, {mixed}}, kNow);
  ASSERT_EQ(decision.placements.size(), 1U);
  EXPECT_EQ(decision.placements[0].devices, std::vector<int>{0});
  EXPECT_EQ(reason(decision, "b"), v1::PendingStatus::DEVICES_BUSY);
}

TEST(Scheduler, TheFullestWorkerThatFitsIsTaken) {
  const Snapshot snapshot{{job("a", 1)},
                          {worker("a", v1::Device::CUDA, 8), worker("b", v1::Device::CUDA, 8, 7),
                           worker("c", v1::Device::CUDA, 8, 7)}};
  EXPECT_EQ(schedule(snapshot, kNow).placements.at(0).worker, "b");
}

TEST(Scheduler, AnUnevaluatedHeadIsNotOvertakenAndSaysWhy) {
  PendingJob head = job("a", 1);
  head.bytes_per_device.reset();
  const Decision decision = schedule({{head, job("b", 2)}, {worker("w", v1::Device::CPU, 1)}}, kNow);
  EXPECT_TRUE(decision.placements.empty());
  EXPECT_EQ(reason(decision, "a"), v1::PendingStatus::EVALUATING);
  EXPECT_EQ(reason(decision, "b"), v1::PendingStatus::BEHIND_IN_QUEUE);
}

TEST(Scheduler, ABackOffEndsByTheClockAndHoldsUpNobody) {
  PendingJob waiting = job("a", 1);
  waiting.not_before = kNow + std::chrono::seconds(3);
  waiting.last_failure = "the GPU fell off";
  const Snapshot snapshot{{waiting, job("b", 2)}, {worker("w", v1::Device::CPU, 1)}};
  const Decision before = schedule(snapshot, kNow);
  EXPECT_EQ(reason(before, "a"), v1::PendingStatus::RETRY_BACKOFF);
  EXPECT_NE(before.waiting.at("a").message().find("the GPU fell off"), std::string::npos);
  EXPECT_EQ(before.next, kNow + std::chrono::seconds(1)) << "its message counts down";
  EXPECT_EQ(schedule(snapshot, waiting.not_before - std::chrono::milliseconds(5)).next, waiting.not_before);
  ASSERT_EQ(before.placements.size(), 1U);
  EXPECT_EQ(before.placements[0].job, "b");
  const Decision after = schedule(snapshot, waiting.not_before);
  EXPECT_EQ(after.placements.at(0).job, "a");
  EXPECT_FALSE(after.next);
}

TEST(Scheduler, ALostWorkersJobWaitsForIt) {
  PendingJob lost = job("a", 1);
  lost.silent_worker = "workers/w";
  const Decision decision = schedule({{lost, job("b", 2)}, {worker("v", v1::Device::CPU, 1)}}, kNow);
  EXPECT_EQ(reason(decision, "a"), v1::PendingStatus::WORKER_LOST);
  EXPECT_EQ(decision.placements.at(0).job, "b");
}

TEST(Scheduler, EveryWaitingJobHasAReasonAMessageAndItsOwnPosition) {
  std::vector<PendingJob> jobs;
  for (int i = 0; i < 40; ++i) {
    PendingJob each =
        job("j" + std::to_string(i), i, 1 + i % 5, static_cast<WantedDevice>(i % 3), 100 + 97 * (i % 13));
    if (i % 7 == 0) each.bytes_per_device.reset();
    if (i % 11 == 0) each.not_before = kNow + std::chrono::seconds(i + 1);
    jobs.push_back(each);
  }
  const std::vector<OfferedWorker> workers = {worker("v", v1::Device::CUDA, 4, 1),
                                              worker("w", v1::Device::CPU, 2)};
  const Decision decision = schedule({jobs, workers}, kNow);
  EXPECT_EQ(decision.placements.size() + decision.waiting.size(), jobs.size());
  std::vector<int> positions;
  for (const auto& [name, status] : decision.waiting) {
    EXPECT_NE(status.reason(), v1::PendingStatus::REASON_UNSPECIFIED) << name;
    EXPECT_FALSE(status.message().empty()) << name;
    positions.push_back(status.queue_position());
  }
  std::sort(positions.begin(), positions.end());
  for (std::size_t i = 0; i < positions.size(); ++i) EXPECT_EQ(positions[i], static_cast<int>(i) + 1);

  // No device twice, and the same answer when the input comes in another order.
  std::vector<std::pair<std::string, int>> taken;
  for (const Placement& placement : decision.placements) {
    for (const int device : placement.devices) taken.emplace_back(placement.worker, device);
  }
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(std::adjacent_find(taken.begin(), taken.end()), taken.end());
  std::reverse(jobs.begin(), jobs.end());
  const Decision again = schedule({jobs, {workers[1], workers[0]}}, kNow);
  ASSERT_EQ(again.placements.size(), decision.placements.size());
  for (std::size_t i = 0; i < again.placements.size(); ++i) {
    EXPECT_EQ(again.placements[i].job, decision.placements[i].job);
    EXPECT_EQ(again.placements[i].devices, decision.placements[i].devices);
  }
}

}  // namespace
}  // namespace coat::scheduler
