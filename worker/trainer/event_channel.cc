#include "worker/trainer/event_channel.h"

#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace coat::trainer {
namespace {

// About 30 MB of steps; a reader that is so far behind loses the oldest.
constexpr std::size_t kMaxWaiting = 100'000;
constexpr std::chrono::seconds kFlushTime{10};

// Never blocks after a poll for POLLOUT: a pipe that is ready takes PIPE_BUF bytes. A socket must not raise
// SIGPIPE; send() fails on what is no socket.
ssize_t put(int descriptor, const char* data, std::size_t bytes) {
  const ssize_t sent = ::send(descriptor, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0 || errno != ENOTSOCK) return sent;
  return ::write(descriptor, data, std::min<std::size_t>(bytes, PIPE_BUF));
}

}  // namespace

EventChannel::EventChannel(int descriptor, bool owned)
    : descriptor_(descriptor), owned_(owned), give_up_(::eventfd(0, EFD_CLOEXEC)) {
  if (give_up_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  writer_ = std::thread([this] { write_lines(); });
}

EventChannel::~EventChannel() {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kFlushTime, [this] { return drained_; });
  }
  ::eventfd_write(give_up_, 1);
  writer_.join();
  ::close(give_up_);
  if (owned_) ::close(descriptor_);
}

void EventChannel::send(const protocol::Event& event) {
  std::string line = protocol::to_line(event) + "\n";
  const std::lock_guard lock(mutex_);
  if (reader_gone_) return;
  if (waiting_.size() >= kMaxWaiting) waiting_.pop_front();
  waiting_.push_back(std::move(line));
  changed_.notify_all();
}

void EventChannel::write_lines() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty() || reader_gone_) {
      waiting_.clear();
      if (!closing_) continue;
      drained_ = true;
      changed_.notify_all();
      return;
    }
    const std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const bool written = write_line(line);
    lock.lock();
    reader_gone_ = !written;
  }
}

bool EventChannel::write_line(const std::string& line) {
  std::size_t done = 0;
  while (done < line.size()) {
    pollfd watched[2] = {{.fd = descriptor_, .events = POLLOUT, .revents = 0},
                         {.fd = give_up_, .events = POLLIN, .revents = 0}};
    if (::poll(watched, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (watched[0].revents == 0) return false;  // given up
    const ssize_t sent = put(descriptor_, line.data() + done, line.size() - done);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno != EAGAIN && errno != EINTR) {
      const bool hung_up = errno == EPIPE || errno == ECONNRESET;
      if (!hung_up)
        std::fprintf(stderr, "coat-trainer: warning: events are lost: %s\n", std::strerror(errno));
      return false;
    }
  }
  return true;
}

}  // namespace coat::trainer
