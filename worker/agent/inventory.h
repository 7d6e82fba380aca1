// The devices that this worker offers, and their health. Thread-safe.
//
// Health
//   OK       offered
//   SUSPECT  a trainer on it cannot be killed or reported a fault, or the driver reported an XID that says
//            nothing certain. OK again when the process is gone, or after five quiet minutes
//   FAULTED  the driver cannot talk to it, or reported an XID after which only a reset helps: until the
//            daemon starts again
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "proto/coat/v1/types.pb.h"
#include "proto/common/clock.h"
#include "worker/agent/nvml.h"
#include "worker/agent/process_table.h"

namespace coat::agent {

struct InventoryOptions {
  int cpu_devices = -1;                 // -1: one where there is no GPU, else none
  std::int64_t memory_limit_bytes = 0;  // of each CPU device; 0: from the machine
  std::string worker_id;                // part of a CPU device's uuid
};

// What the machine lets a process hold: the smallest memory limit of the cgroups (v1 and v2) above it, or the
// machine's memory.
std::int64_t machine_memory_bytes();
// "model name" of /proc/cpuinfo.
std::string processor_name();

enum class XidClass {
  kApplication,  // the job's own doing: no word about the device
  kSuspect,
  kFatal,  // only a reset of the device or the machine helps
};
XidClass classify_xid(std::uint64_t xid);

class Inventory {
 public:
  // `nvml` may be null: no GPUs.
  Inventory(const InventoryOptions& options, std::unique_ptr<Nvml> nvml, Clock& clock);
  ~Inventory();

  // With their health now; index i is element i.
  std::vector<v1::Device> devices() const;
  // "cpu:0", "cuda:3": how the trainer names device `index`. Throws std::out_of_range.
  std::string trainer_name(int index) const;
  // CPU threads of a trainer on device `index`: an equal share of the cores for a CPU device, else 0.
  int threads(int index) const;
  // The device that an estimate for `kind` ("auto", "cpu", "cuda") is held against: the largest of that kind.
  std::optional<int> largest(const std::string& kind) const;

  // A trainer on these devices could not be killed.
  void report_survivors(const std::vector<int>& devices, const std::vector<ProcessIdentity>& survivors);
  // A trainer on these devices ended with a device fault.
  void report_fault(const std::vector<int>& devices, const std::string& message);
  // Looks again: driver events, answers, survivors. Returns true when any health changed.
  bool check();

 private:
  struct Entry;
  void check_gpus();
  void set(Entry& entry, v1::Device::Health health, const std::string& message);

  mutable std::mutex mutex_;
  Clock& clock_;
  std::unique_ptr<Nvml> nvml_;
  std::vector<Entry> entries_;
  int cpu_count_ = 0;
  bool changed_ = false;
};

}  // namespace coat::agent
