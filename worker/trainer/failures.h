// Exceptions made into exit codes: the one place where both are known.
#pragma once

#include <exception>

#include "worker/protocol/messages.h"

namespace coat::trainer {

// The failure that `error` is, with its exit code of worker/protocol/exit_codes.h.
protocol::Failure failure_of(const std::exception_ptr& error);

}  // namespace coat::trainer
