// The supervisor of one attempt: a small single-threaded process between daemon and trainer, so that the
// daemon can die and come back while the trainer loses neither its event socket nor its parent. It starts the
// trainer from attempt.json, keeps the attempt's files (attempt_record.h), obeys stop.json, kills all that
// the trainer leaves behind, and writes exit.json.
//
// Stop: a checkpoint is asked for at once, SIGTERM follows at 80 % of the grace, SIGKILL at its end.
// The trainer gets SIGTERM when the supervisor dies. When the daemon stays dead for longer than the orphan
// grace, the supervisor stops the trainer as if asked. A controller that is away does not count: nobody asks
// the supervisor about it.
#pragma once

#include <chrono>
#include <filesystem>

namespace coat::agent {

// How long SIGKILL may take before a process counts as unkillable.
inline constexpr std::chrono::seconds kKillLimit{5};
// SIGTERM comes when so much of the grace is over.
inline constexpr double kTermShare = 0.8;

// Runs the attempt of `folder` to its end. stop.json is looked for ten times a second; SIGTERM and SIGINT to
// this process stop the attempt with its own grace. Returns the exit code of the process: 0, or 1 when it
// could not do its work (another supervisor holds the folder, no exit.json could be written).
int supervise(const std::filesystem::path& folder);

}  // namespace coat::agent
