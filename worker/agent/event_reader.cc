#include "worker/agent/event_reader.h"

#include <cstdlib>
#include <stdexcept>
#include <variant>

#include "worker/agent/durable_file.h"

namespace coat::agent {

bool EventReader::poll() {
  const bool events = poll_events();
  return poll_progress() || events;
}

bool EventReader::poll_events() {
  if (size_of_file(files_.events()) <= offset_) return false;
  bool any = false;
  while (true) {
    const std::string bytes = read_range(files_.events(), offset_, 8U << 20);
    const std::size_t whole = bytes.rfind('\n');
    if (whole == std::string::npos) return any;  // also when a line is still being written
    std::size_t begin = 0;
    while (begin <= whole) {
      const std::size_t end = bytes.find('\n', begin);
      on_line(bytes.substr(begin, end - begin));
      begin = end + 1;
    }
    offset_ += static_cast<std::int64_t>(whole) + 1;
    any = true;
  }
}

void EventReader::on_line(const std::string& line) {
  char* end = nullptr;
  const double time = std::strtod(line.c_str(), &end);
  if (*end != ' ') return;
  try {
    const protocol::Event event = protocol::parse_event(end + 1);
    if (const auto* started = std::get_if<protocol::Started>(&event)) state_.started = *started;
    if (const auto* summary = std::get_if<protocol::Summary>(&event)) state_.summary = *summary;
    if (const auto* failure = std::get_if<protocol::Failure>(&event)) state_.failure = *failure;
    if (const auto* checkpoint = std::get_if<protocol::Checkpoint>(&event)) {
      state_.checkpoint = *checkpoint;
      state_.checkpoint_time = time;
    }
  } catch (const std::invalid_argument&) {
  }
}

bool EventReader::poll_progress() {
  auto text = read_file(files_.progress());
  if (!text || *text == progress_text_) return false;
  progress_text_ = std::move(*text);
  try {
    const protocol::Event event = protocol::parse_event(progress_text_);
    if (const auto* step = std::get_if<protocol::Step>(&event)) state_.step = *step;
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

}  // namespace coat::agent
