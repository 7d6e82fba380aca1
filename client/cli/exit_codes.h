// What the exit code of `coat` says. Scripts rely on it.
//
//   code  meaning
//      0  done; of watch, wait and submit --wait: the job SUCCEEDED
//      1  the job FAILED
//      2  wrong usage, or a job file that breaks a rule
//      3  the job was CANCELLED
//      4  there is no such job, attempt or worker
//      5  the service cannot be reached
//      6  the service refused for another reason
//    124  the time of --timeout passed first
//    130  interrupted (Ctrl-C); a job goes on
#pragma once

namespace coat::cli {

enum class ExitCode : int {
  kOk = 0,
  kJobFailed = 1,
  kUsage = 2,
  kJobCancelled = 3,
  kNotFound = 4,
  kUnreachable = 5,
  kRefused = 6,
  kTimedOut = 124,
  kInterrupted = 130,
};

}  // namespace coat::cli
