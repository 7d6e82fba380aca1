// The command line of `coat`: from arguments to the command's function and its exit code.
#pragma once

#include <string>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/terminal.h"

namespace coat::cli {

inline constexpr const char* kVersion = "0.1.0";

// `arguments` without the program's name. Never throws for anything that a person can type.
ExitCode run(const std::vector<std::string>& arguments, Terminal& terminal);

}  // namespace coat::cli
