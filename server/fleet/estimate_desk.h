// Questions to workers about a spec's memory and data, each answered exactly once: by the worker, by its
// leaving, or by the clock. Not thread-safe: it belongs to the state thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/clock.h"

namespace coat::fleet {

struct EstimateAnswer {
  enum class Kind {
    kEstimate,    // `estimate` holds
    kRefused,     // `error` says what is wrong with the spec or the data
    kFailed,      // the worker could not tell; `error` says why
    kWorkerLeft,  // ask another one
    kTimeout,
  };
  Kind kind = Kind::kWorkerLeft;
  v1::Estimate estimate;
  v1::ExitStatus error;
  std::string worker;
};

class EstimateDesk {
 public:
  using Done = std::function<void(const EstimateAnswer&)>;

  // Returns the id that the query carries.
  std::int64_t open(const std::string& worker, SteadyTime deadline, Done done);
  // An answer to a question that is not open any more is ignored.
  void answer(const std::string& worker, const v1::EstimateResult& result);
  void worker_left(const std::string& worker);
  void expire(SteadyTime now);
  void close_all();

  std::size_t open_on(const std::string& worker) const;
  std::optional<SteadyTime> next_deadline() const;

 private:
  struct Query {
    std::string worker;
    SteadyTime deadline;
    Done done;
  };
  void finish(std::map<std::int64_t, Query>::iterator query, EstimateAnswer answer);
  std::int64_t last_id_ = 0;
  std::map<std::int64_t, Query> queries_;
};

}  // namespace coat::fleet
