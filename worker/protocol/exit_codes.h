// How a trainer ends. The one table of it: the agent maps these to coat.v1.ExitStatus.Reason, people read
// them in scripts.
//
//   code  meaning                        retried   what to do
//      0  done
//     64  bad spec                       no        change the field that the message names
//     65  data error                     no        missing, empty, unreadable or inconsistent data
//     66  checkpoint error               no        damaged, of another model, or the disk is full
//     70  internal                       yes       a bug of ours: report the log
//     71  out of device memory           no        smaller micro_batch, or a recipe that holds less
//     72  non-finite loss                no        lower learning rate, longer warm-up
//     73  collective failed              yes       another rank or the network went away
//     74  device fault                   yes       the GPU reported an error; the agent re-checks it
//     85  stopped after a checkpoint     yes       asked to stop; the next attempt goes on from there
//     86  fenced                         -         a newer attempt of the job owns its checkpoint folder
#pragma once

namespace coat::protocol {

enum class ExitCode : int {
  kDone = 0,
  kBadSpec = 64,
  kDataError = 65,
  kCheckpointError = 66,
  kInternal = 70,
  kOutOfDeviceMemory = 71,
  kNonFiniteLoss = 72,
  kCollectiveFailed = 73,
  kDeviceFault = 74,
  kStopped = 85,
  kFenced = 86,
};

}  // namespace coat::protocol
