#include "server/jobs/retry.h"

#include "proto/common/backoff.h"

namespace coat::jobs {

using std::chrono::milliseconds;

RetryClass retry_class(v1::ExitStatus::Reason reason) {
  switch (reason) {
    case v1::ExitStatus::INTERNAL:
    case v1::ExitStatus::COLLECTIVE_FAILED:
    case v1::ExitStatus::DEVICE_FAULT:
    case v1::ExitStatus::KILLED:
    case v1::ExitStatus::LAUNCH_FAILED:
      return RetryClass::kCounted;
    case v1::ExitStatus::WORKER_LOST:
    case v1::ExitStatus::STOPPED:
    case v1::ExitStatus::CANCELLED:
      return RetryClass::kFree;
    default:
      return RetryClass::kNever;
  }
}

milliseconds retry_delay(v1::ExitStatus::Reason reason, int retry) {
  constexpr BackoffOptions kBackoff{
      .initial = milliseconds(2000), .maximum = milliseconds(300000), .factor = 2.0, .jitter = 0};
  switch (retry_class(reason)) {
    case RetryClass::kCounted:
      return backoff_delay(kBackoff, retry);
    case RetryClass::kFree:
      return reason == v1::ExitStatus::WORKER_LOST ? milliseconds(0) : kBackoff.initial;
    case RetryClass::kNever:
      break;
  }
  return milliseconds(0);
}

}  // namespace coat::jobs
