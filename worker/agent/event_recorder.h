// Turns what a trainer writes on its socket into the files of its attempt: metrics.jsonl, events.jsonl,
// progress.json. Not thread-safe: it belongs to the supervisor's loop.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "worker/agent/attempt_record.h"
#include "worker/agent/unique_fd.h"
#include "worker/protocol/messages.h"

namespace coat::agent {

// Appends to a file. What a full disk refuses is kept, up to a bound, and tried again: the file is always a
// prefix of what was given.
class AppendedFile {
 public:
  // Throws std::system_error that names the path.
  explicit AppendedFile(const std::filesystem::path& path);
  void append(const std::string& bytes);
  // Tries again what is kept; true when nothing is left.
  bool flush();
  void sync();

 private:
  UniqueFd fd_;
  std::string pending_;
};

class EventRecorder {
 public:
  // `complain` gets one line for people about input that is no event.
  EventRecorder(const AttemptFiles& files, std::function<void(const std::string&)> complain);

  void on_bytes(const std::string& bytes);
  // progress.json lags by at most half a second when this is called at least that often; `force` writes it
  // now.
  void flush(bool force);
  void sync();

 private:
  void on_line(const std::string& line);

  AttemptFiles files_;
  std::function<void(const std::string&)> complain_;
  AppendedFile metrics_;
  AppendedFile events_;
  std::string partial_;  // of a line
  protocol::Step latest_;
  std::vector<protocol::QuantizationError> quantization_;
  bool progress_changed_ = false;
  std::chrono::steady_clock::time_point progress_written_{};
};

}  // namespace coat::agent
