#include "client/cli/terminal.h"

namespace coat::cli {
namespace {

const char* color_of(const std::string& state) {
  if (state == "SUCCEEDED" || state == "READY") return "32";                             // green
  if (state == "FAILED" || state == "LOST" || state == "FENCED") return "31";            // red
  if (state == "PENDING" || state == "CANCELLING" || state == "CANCELLED") return "33";  // yellow
  return "36";                                                                           // cyan
}

}  // namespace

std::string paint_state(const Terminal& terminal, const std::string& state) {
  return terminal.color ? std::string("\x1b[") + color_of(state) + "m" + state + "\x1b[0m" : state;
}

std::string bold(const Terminal& terminal, const std::string& text) {
  return terminal.color ? "\x1b[1m" + text + "\x1b[0m" : text;
}

}  // namespace coat::cli
