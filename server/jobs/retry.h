// Whether a job is tried again after an attempt ended, what that costs and when. The one place that counts
// retries.
#pragma once

#include <chrono>

#include "proto/coat/v1/types.pb.h"

namespace coat::jobs {

enum class RetryClass {
  kNever,    // trying again would end the same way
  kCounted,  // may pass: costs one of spec.retry.max_retries, after a back-off
  kFree,     // not the job's doing: costs nothing
};

RetryClass retry_class(v1::ExitStatus::Reason reason);

// Before the new attempt. kCounted: 2 s, doubled for each retry, at most 5 min (`retry` 1 is the first).
// STOPPED: 2 s, so that a worker that is shutting down is gone from the list. Others: none.
std::chrono::milliseconds retry_delay(v1::ExitStatus::Reason reason, int retry);

}  // namespace coat::jobs
