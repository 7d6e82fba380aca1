// Which pending job starts where, and why the others wait: a pure function of a snapshot and the time. No
// I/O, no threads, no clock, and the same answer for the same input.
//
// Rules
// - First come, first served, by `order`. All devices of a job are on one worker, all or none (a gang).
// - A job that waits for busy devices is not overtaken by a later one that could use the same kind of device;
// neither is one
//   that is still being evaluated. One that can never fit, or waits in back-off or for its silent worker,
//   holds up nobody.
// - "auto" means cuda devices on a worker that has any, cpu devices elsewhere.
// - Among the workers that fit, the one with the fewest free devices of the kind is taken (then the first by
// name), so that
//   whole workers stay free for larger gangs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/coat/v1/types.pb.h"
#include "proto/common/clock.h"

namespace coat::scheduler {

enum class WantedDevice { kAuto, kCpu, kCuda };
// Of spec.resources.device; anything unknown is kAuto.
WantedDevice wanted_device(const std::string& name);

struct PendingJob {
  std::string name;
  std::int64_t order = 0;
  WantedDevice device = WantedDevice::kAuto;
  int devices = 1;
  std::optional<std::int64_t> bytes_per_device;  // of its estimate; none: not evaluated yet
  std::string evaluation;                        // what is known of a lasting evaluation, for people
  SteadyTime not_before{};                       // end of its back-off
  std::string last_failure;                      // why it is in back-off, for people
  std::string silent_worker;                     // of its LOST attempt; "": none
};

struct OfferedDevice {
  int index = 0;
  v1::Device::Kind kind = v1::Device::CPU;
  std::int64_t memory_bytes = 0;
  bool healthy = true;
  bool busy = false;
};

// A connected worker that takes attempts.
struct OfferedWorker {
  std::string name;  // "workers/W"
  std::vector<OfferedDevice> devices;
};

struct Snapshot {
  std::vector<PendingJob> jobs;        // in any order
  std::vector<OfferedWorker> workers;  // in any order
};

struct Placement {
  std::string job;
  std::string worker;
  std::vector<int> devices;
};

struct Decision {
  std::vector<Placement> placements;                 // in the order in which they were made
  std::map<std::string, v1::PendingStatus> waiting;  // every job that was not placed
  std::optional<SteadyTime>
      next;  // the end of the nearest back-off, at most a second away: the messages count down
};

Decision schedule(const Snapshot& snapshot, SteadyTime now);

// The kind that `wanted` means on a worker with these devices.
v1::Device::Kind kind_on(WantedDevice wanted, const std::vector<OfferedDevice>& devices);

}  // namespace coat::scheduler
