// Runs `coat` in the test's process: arguments in, both outputs and the exit code back.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "client/cli/cli.h"

namespace coat::cli {

struct CommandRun {
  int code = 0;
  std::string out;
  std::string err;
};

struct Surroundings {
  std::string input;
  std::string server;  // as COAT_SERVER
  bool tty = false;
  bool color = false;
  int width = 200;
  std::stop_token stop;
};

inline CommandRun run_command(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  std::ostringstream out;
  std::ostringstream err;
  std::istringstream in(surroundings.input);
  ManualClock clock;
  Terminal terminal{out,
                    err,
                    in,
                    surroundings.tty,
                    surroundings.tty,
                    surroundings.color,
                    surroundings.width,
                    surroundings.server,
                    surroundings.stop,
                    clock};
  const ExitCode code = run(arguments, terminal);
  return {static_cast<int>(code), out.str(), err.str()};
}

}  // namespace coat::cli
