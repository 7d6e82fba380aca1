// What others tell a running trainer: commands on the agent's socket, and signals.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "worker/core/train/run_control.h"

namespace coat::trainer {

// SIGTERM and SIGINT ask for a stop after a checkpoint; a second SIGINT ends the program at once, as an
// impatient person wants. Signals are blocked in the thread that makes this object, and so in every thread
// that it starts later.
class SignalListener {
 public:
  explicit SignalListener(train::RunControl& control);
  ~SignalListener();
  SignalListener(const SignalListener&) = delete;
  SignalListener& operator=(const SignalListener&) = delete;

 private:
  void listen();
  train::RunControl& control_;
  int wake_[2];  // a pipe: its closed end ends the thread
  std::thread thread_;
};

// Reads command lines from the agent's socket until its end. An agent that is gone changes nothing: what
// stops an orphan is the signal that it asked the kernel to send with its death. A line that is no command is
// told to `warn`.
class CommandListener {
 public:
  CommandListener(int descriptor, train::RunControl& control, std::function<void(const std::string&)> warn);
  ~CommandListener();
  CommandListener(const CommandListener&) = delete;
  CommandListener& operator=(const CommandListener&) = delete;

 private:
  void listen();
  void obey(const std::string& line);
  const int descriptor_;
  train::RunControl& control_;
  std::function<void(const std::string&)> warn_;
  int wake_[2];
  std::thread thread_;
};

}  // namespace coat::trainer
