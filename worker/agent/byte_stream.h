// Which bytes of a file have gone to the controller. Offsets only; the file itself is read by whoever sends.
// Not thread-safe.
//
// Nothing is sent before the controller's offset is known. A bounded window is in flight. Whatever the reason
// that an answer stays away (a refused chunk, a full disk over there), after a while all from the
// acknowledged offset is sent again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "proto/common/clock.h"

namespace coat::agent {

class ByteStream {
 public:
  static constexpr std::int64_t kMaxChunk = 256 * 1024;
  static constexpr std::int64_t kWindow = 4 * kMaxChunk;
  static constexpr std::chrono::seconds kPatience{10};

  struct Range {
    std::int64_t offset = 0;
    std::size_t size = 0;
  };

  // A new connection. `known`: the controller's offset is known to be 0, because it has just assigned the
  // attempt.
  void begin_session(bool known, SteadyTime now) {
    known_ = known;
    sent_ = acked_ = 0;
    progress_ = now;
  }

  // What to send of a file that is `size` bytes long, if anything. `on_sent` must follow for what was really
  // sent.
  std::optional<Range> next(std::int64_t size, SteadyTime now) {
    if (!known_) return std::nullopt;
    if (sent_ > acked_ && now - progress_ >= kPatience) {
      sent_ = acked_;
      progress_ = now;
    }
    const std::int64_t end = std::min({size, acked_ + kWindow, sent_ + kMaxChunk});
    if (end <= sent_) return std::nullopt;
    return Range{sent_, static_cast<std::size_t>(end - sent_)};
  }
  void on_sent(const Range& range, SteadyTime now) {
    if (sent_ == acked_) progress_ = now;
    sent_ = range.offset + static_cast<std::int64_t>(range.size);
  }

  // The controller holds everything before `offset`.
  void on_ack(std::int64_t offset, SteadyTime now) {
    if (!known_ || offset > acked_) progress_ = now;
    if (!known_ || offset < acked_) sent_ = offset;
    known_ = true;
    acked_ = offset;
    sent_ = std::max(sent_, offset);
  }

  bool complete(std::int64_t size) const { return known_ && acked_ >= size; }

 private:
  bool known_ = false;
  std::int64_t sent_ = 0;
  std::int64_t acked_ = 0;
  SteadyTime progress_{};  // of the acknowledged offset
};

}  // namespace coat::agent
