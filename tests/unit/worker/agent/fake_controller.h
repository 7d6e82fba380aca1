// A controller in this process that keeps what a worker says and answers as the contract wants, or does not
// when told so.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "proto/coat/v1/worker_service.pb.h"

namespace coat::agent::testing {

class FakeController {
 public:
  FakeController();
  ~FakeController();

  std::string address() const;  // stays the same over stop() and start()
  void start();
  void stop();  // every stream breaks

  // On the newest stream; false when there is none.
  bool send(const v1::ControllerMessage& message);
  void assign(const std::string& attempt, std::int64_t epoch,
              const std::map<std::string, std::string>& labels, int device = 0);
  void stop_attempt(const std::string& attempt, std::int64_t epoch, double grace_seconds, bool user_cancel);
  void fence(const std::string& attempt, std::int64_t epoch);
  // Breaks the newest stream.
  void drop();

  void answer_reports(bool yes);
  void answer_chunks(bool yes);

  // What has come, over all streams.
  std::vector<v1::Register> registers() const;
  std::vector<v1::Heartbeat> heartbeats() const;
  std::vector<v1::EstimateResult> estimates() const;
  std::vector<v1::AttemptReport> reports(const std::string& attempt, std::int64_t epoch) const;
  // The last report with a sequence of its own.
  std::optional<v1::AttemptReport> latest(const std::string& attempt, std::int64_t epoch) const;
  bool ended(const std::string& attempt, std::int64_t epoch) const;
  // The bytes that arrived, each once and in order.
  std::string bytes(const std::string& attempt, std::int64_t epoch, v1::StreamChunk::Kind kind) const;

 private:
  struct Service;
  std::unique_ptr<Service> service_;
};

}  // namespace coat::agent::testing
