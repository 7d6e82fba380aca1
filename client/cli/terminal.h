// Where a command reads and writes, and what it knows of its surroundings; a test hands in its own.
#pragma once

#include <istream>
#include <ostream>
#include <stop_token>
#include <string>

#include "proto/common/clock.h"

namespace coat::cli {

struct Terminal {
  std::ostream& out;  // data
  std::ostream& err;  // words for people
  std::istream& in;
  bool out_is_tty = false;
  bool err_is_tty = false;
  bool color = false;
  int width = 100;                    // columns of a tty
  std::string server_of_environment;  // COAT_SERVER; empty: not set
  std::stop_token stop;               // Ctrl-C
  Clock& clock;
};

// `text` in the colour of a job's or worker's state, where the terminal shows colours.
std::string paint_state(const Terminal& terminal, const std::string& state);
std::string bold(const Terminal& terminal, const std::string& text);

}  // namespace coat::cli
