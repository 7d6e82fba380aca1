// A worker daemon as the controller sees one: the test says what it sends and looks at what it gets.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <grpcpp/channel.h>

#include "proto/coat/v1/worker_service.grpc.pb.h"

namespace coat::testing {

class FakeWorker {
 public:
  explicit FakeWorker(const std::shared_ptr<grpc::Channel>& channel);
  ~FakeWorker();

  // One CPU device of 1 GiB.
  static v1::Register hello(const std::string& id = "w", std::int64_t incarnation = 1, int devices = 1);
  void send(const v1::WorkerMessage& message);
  void send(const v1::Register& message);
  void send(const v1::AttemptReport& report);
  void send(const v1::EstimateResult& result);
  void send_chunk(const v1::Assign& assign, v1::StreamChunk::Kind kind, std::int64_t offset,
                  const std::string& data);
  void heartbeat();
  // Registers and waits for the answer; from then on every estimate query is answered with `bytes`, unless it
  // is negative.
  void enter(const v1::Register& message, std::int64_t estimate_bytes = 1000);

  // The next message of the kind that `pick` takes, which waits for it; others of other kinds stay. Empty
  // where none comes or the stream ends.
  std::optional<v1::ControllerMessage> next(v1::ControllerMessage::MessageCase kind);
  v1::Assign next_assign();
  v1::Stop next_stop();
  // Whether one has come already.
  bool has(v1::ControllerMessage::MessageCase kind);

  // Reports of an assigned attempt.
  static v1::AttemptReport report(const v1::Assign& assign, v1::Attempt::State state, std::int64_t sequence);
  void run(const v1::Assign& assign);  // RUNNING, and waits for the acknowledgement
  void finish(const v1::Assign& assign, v1::Attempt::State state, v1::ExitStatus::Reason reason,
              std::int64_t log_bytes = 0, std::int64_t metrics_bytes = 0);

  // Cuts the stream as a network does.
  void vanish();
  // Waits for the controller's end of the stream.
  grpc::Status status();

 private:
  bool acknowledged(std::int64_t sequence);
  void read();
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>> stream_;
  std::mutex write_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::ControllerMessage> inbox_;
  std::int64_t estimate_bytes_ = -1;
  bool ended_ = false;
  grpc::Status status_;
  std::thread reader_;
};

}  // namespace coat::testing
