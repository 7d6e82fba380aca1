// Who the workers are, which of them can be reached, and when one is given up. Not thread-safe: it belongs to
// the state thread.
//
// Liveness: a worker that has not been heard of for `lease` is LOST, and after `fence_after` more its
// attempts may be fenced. Both count on the steady clock from what this process heard, so the time during
// which the controller was down counts nothing.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/coat/v1/types.pb.h"
#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/clock.h"
#include "proto/common/result.h"
#include "server/fleet/worker_link.h"
#include "server/store/store.h"

namespace coat::fleet {

struct LeaseOptions {
  std::chrono::milliseconds heartbeat_interval{5000};
  std::chrono::milliseconds lease{15000};
  std::chrono::milliseconds fence_after{30000};
};

struct WorkerEntry {
  v1::Worker worker;                 // state READY or LOST
  std::shared_ptr<WorkerLink> link;  // null: not connected
  SteadyTime heard{};
  SteadyTime lost{};      // since when, while LOST
  bool given_up = false;  // while LOST: its attempts were fenced

  bool connected() const { return link != nullptr; }
};

class WorkerBook {
 public:
  explicit WorkerBook(LeaseOptions options);

  // The workers of the former run. Each of them has a whole lease from now on; a LOST one is READY again
  // until then, as nobody can tell any more how long it was silent.
  void restore(const std::vector<store::WorkerRow>& rows, SteadyTime now);

  struct Registration {
    WorkerEntry* entry = nullptr;
    bool was_lost = false;
    std::shared_ptr<WorkerLink> replaced;  // to be ended with ABORTED; null: none
  };
  // Refused: an incarnation older than the one that is known, unless that one is LOST.
  Result<Registration> enter(const v1::Register& message, std::shared_ptr<WorkerLink> link, SteadyTime now,
                             SystemTime stamp);
  void hear(WorkerEntry& entry, SteadyTime now, SystemTime stamp);
  // The devices as the worker sees them now. False: as before.
  bool take_devices(WorkerEntry& entry, const google::protobuf::RepeatedPtrField<v1::Device>& devices);
  void leave(WorkerEntry& entry);

  // Marks as LOST, once, those whose lease is over, and returns them.
  std::vector<WorkerEntry*> expire_leases(SteadyTime now);
  // Those that became due for fencing; each is returned once for each loss.
  std::vector<WorkerEntry*> due_for_fencing(SteadyTime now);
  std::optional<SteadyTime> next_deadline() const;

  WorkerEntry* find(const std::string& name);
  std::map<std::string, WorkerEntry>& entries() { return entries_; }
  const std::map<std::string, WorkerEntry>& entries() const { return entries_; }
  const LeaseOptions& options() const { return options_; }

 private:
  LeaseOptions options_;
  std::map<std::string, WorkerEntry> entries_;  // by "workers/W"
};

}  // namespace coat::fleet
