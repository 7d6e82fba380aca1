#include "worker/agent/event_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <variant>

#include "worker/agent/durable_file.h"

namespace coat::agent {
namespace {

constexpr std::size_t kMaxPending = 8U << 20;
constexpr std::size_t kMaxLine = 4U << 20;
constexpr std::chrono::milliseconds kProgressInterval{500};

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

AppendedFile::AppendedFile(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!fd_) throw std::system_error(errno, std::generic_category(), "cannot open " + path.string());
}

void AppendedFile::append(const std::string& bytes) {
  if (pending_.size() + bytes.size() > kMaxPending) return;  // the disk has been full for long
  pending_ += bytes;
  flush();
}

bool AppendedFile::flush() {
  while (!pending_.empty()) {
    const ssize_t n = ::write(fd_.get(), pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    pending_.erase(0, static_cast<std::size_t>(n));
  }
  return true;
}

void AppendedFile::sync() { ::fsync(fd_.get()); }

EventRecorder::EventRecorder(const AttemptFiles& files, std::function<void(const std::string&)> complain)
    : files_(files), complain_(std::move(complain)), metrics_(files.metrics()), events_(files.events()) {}

void EventRecorder::on_bytes(const std::string& bytes) {
  partial_ += bytes;
  std::size_t begin = 0;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n', begin)) {
    on_line(partial_.substr(begin, end - begin));
    begin = end + 1;
  }
  partial_.erase(0, begin);
  if (partial_.size() > kMaxLine) {
    complain_("dropped an event line of more than " + std::to_string(kMaxLine) + " bytes");
    partial_.clear();
  }
}

void EventRecorder::on_line(const std::string& line) {
  try {
    const protocol::Event event = protocol::parse_event(line);
    if (const auto* step = std::get_if<protocol::Step>(&event)) {
      metrics_.append(protocol::to_metric_line(*step, unix_seconds()) + "\n");
      latest_ = *step;
      if (!step->quantization.empty()) quantization_ = step->quantization;
      progress_changed_ = true;
      flush(false);
    } else {
      events_.append(std::to_string(unix_seconds()) + " " + line + "\n");
    }
  } catch (const std::exception& error) {
    complain_(std::string("the trainer sent a line that is no event: ") + error.what());
  }
}

void EventRecorder::flush(bool force) {
  metrics_.flush();
  events_.flush();
  const auto now = std::chrono::steady_clock::now();
  if (!progress_changed_ || (!force && now - progress_written_ < kProgressInterval)) return;
  protocol::Step shown = latest_;
  shown.quantization = quantization_;
  try {
    replace_file(files_.progress(), protocol::to_line(protocol::Event(shown)));
    progress_changed_ = false;
    progress_written_ = now;
  } catch (const std::system_error& error) {
    if (force) complain_(error.what());
  }
}

void EventRecorder::sync() {
  flush(true);
  metrics_.sync();
  events_.sync();
}

}  // namespace coat::agent
