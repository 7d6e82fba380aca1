// coat-trainer as a child process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/protocol/messages.h"

namespace coat::trainer {

struct Outcome {
  int exit_code = -1;  // -1: killed by a signal
  int signal = 0;
  std::string out;
  std::string err;
};

// One running trainer. Its output goes to files below `folder`. Killed when this object ends before it does.
class Program {
 public:
  // `socket` (or -1) is given to it as its --event-fd under the same number. `before_exec` runs in the child.
  Program(const std::string& folder, const std::vector<std::string>& arguments, int socket = -1,
          const std::function<void()>& before_exec = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void signal(int number) const;
  // Its end, within two minutes; later it is killed, which shows in the outcome.
  Outcome wait();

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

Outcome run_program(const std::string& folder, const std::vector<std::string>& arguments,
                    const std::function<void()>& before_exec = {});

// The events of a file, or of standard output.
std::vector<protocol::Event> parse_events(const std::string& text);

// All of one kind.
template <typename Message>
std::vector<Message> events_of(const std::vector<protocol::Event>& events) {
  std::vector<Message> found;
  for (const protocol::Event& event : events) {
    if (const auto* message = std::get_if<Message>(&event)) found.push_back(*message);
  }
  return found;
}

// Polls until `done` or a minute is over; whether it was done.
bool eventually(const std::function<bool()>& done);

// A pair of connected sockets; the second is for the trainer.
struct SocketPair {
  SocketPair();
  ~SocketPair();
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;
  void close_agent();
  void close_trainer();
  int agent = -1;
  int trainer = -1;
};

// Lines from the agent's end; each with its line feed cut off. Empty at the end of the stream.
class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}
  std::string next();

 private:
  int descriptor_;
  std::string pending_;
};

}  // namespace coat::trainer
