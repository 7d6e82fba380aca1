// coat-trainer, as a function.
#pragma once

#include "worker/protocol/exit_codes.h"
#include "worker/trainer/options.h"

namespace coat::trainer {

// Runs what the options ask for and returns how it ended. Never throws: every failure is told on standard
// error and, where events are asked for, as one Failure event.
protocol::ExitCode run_trainer(const Options& options);

}  // namespace coat::trainer
