// The worker's end of WorkerService.Connect: dials, registers, sends and receives, and dials again with
// back-off for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/backoff.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace coat::agent {

// What the stream carries. Calls come from the stream's two threads.
class StreamContent {
 public:
  virtual ~StreamContent() = default;
  // A new connection begins.
  virtual v1::Register make_register() = 0;
  virtual v1::Heartbeat make_heartbeat() = 0;
  // The next thing to send, if any.
  virtual std::optional<v1::WorkerMessage> next_message() = 0;
  // Anything but Registered.
  virtual void on_message(const v1::ControllerMessage& message) = 0;
};

struct ControllerStreamOptions {
  std::string controller;  // host:port
  BackoffOptions backoff{std::chrono::milliseconds(200), std::chrono::milliseconds(5000), 2.0, 0.2};
};

class ControllerStream {
 public:
  // `content` must outlive the stream.
  ControllerStream(ControllerStreamOptions options, StreamContent& content);
  ~ControllerStream() { stop(); }

  void start();
  // Cancels the stream and waits for its threads: `content` is called no more. May be called twice.
  void stop();

  // There may be something to send.
  void wake();
  bool connected() const { return connected_; }

 private:
  struct Session;
  void run();
  grpc::Status run_session();
  void read_loop(Session& session);
  enum class WriteEnd { kOurs, kTheirs };  // who ended it
  WriteEnd write_loop(Session& session);
  bool is_registered(Session& session);
  bool wait_for_work(Session& session, std::chrono::steady_clock::time_point deadline);
  void log_end(const grpc::Status& status);

  ControllerStreamOptions options_;
  StreamContent& content_;
  Backoff backoff_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool news_ = false;
  bool stopping_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the session, for stop()
  std::atomic<bool> connected_{false};
  std::string last_error_;  // logged once, until it changes
  std::thread thread_;
};

}  // namespace coat::agent
