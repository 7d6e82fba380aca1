// What an attempt's files say about its training: events.jsonl and progress.json, read on as they grow.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "worker/agent/attempt_record.h"
#include "worker/protocol/messages.h"

namespace coat::agent {

struct TrainingState {
  std::optional<protocol::Started> started;
  std::optional<protocol::Step> step;  // the latest, with the latest measured quantization errors
  std::optional<protocol::Checkpoint> checkpoint;
  double checkpoint_time = 0;  // seconds since 1970
  std::optional<protocol::Summary> summary;
  std::optional<protocol::Failure> failure;
};

class EventReader {
 public:
  explicit EventReader(AttemptFiles files) : files_(std::move(files)) {}
  // Reads what is new; true when anything was. Lines that are no events are skipped: the supervisor wrote
  // none.
  bool poll();
  const TrainingState& state() const { return state_; }

 private:
  bool poll_events();
  bool poll_progress();
  void on_line(const std::string& line);

  AttemptFiles files_;
  TrainingState state_;
  std::int64_t offset_ = 0;
  std::string progress_text_;
};

}  // namespace coat::agent
