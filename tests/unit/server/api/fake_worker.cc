#include "tests/unit/server/api/fake_worker.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/unit/server/api/service_fixture.h"

namespace coat::testing {

FakeWorker::FakeWorker(const std::shared_ptr<grpc::Channel>& channel)
    : stub_(v1::WorkerService::NewStub(channel)),
      stream_(stub_->Connect(&context_)),
      reader_([this] { read(); }) {}

FakeWorker::~FakeWorker() {
  vanish();
  reader_.join();
}

void FakeWorker::read() {
  v1::ControllerMessage message;
  while (stream_->Read(&message)) {
    std::int64_t bytes = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      bytes = estimate_bytes_;
      if (!message.has_estimate() || bytes < 0) inbox_.push_back(message);
    }
    changed_.notify_all();
    if (message.has_estimate() && bytes >= 0) {
      v1::EstimateResult result;
      result.set_query_id(message.estimate().query_id());
      result.mutable_estimate()->mutable_memory()->set_total_bytes(bytes);
      send(result);
    }
  }
  const grpc::Status status = stream_->Finish();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    ended_ = true;
  }
  changed_.notify_all();
}

v1::Register FakeWorker::hello(const std::string& id, std::int64_t incarnation, int devices) {
  v1::Register message;
  message.set_worker_id(id);
  message.set_incarnation(incarnation);
  for (int i = 0; i < devices; ++i) {
    v1::Device& device = *message.add_devices();
    device.set_index(i);
    device.set_kind(v1::Device::CPU);
    device.set_memory_bytes(1 << 30);
    device.set_health(v1::Device::OK);
  }
  return message;
}

void FakeWorker::send(const v1::WorkerMessage& message) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  stream_->Write(message);
}

void FakeWorker::send(const v1::Register& message) {
  v1::WorkerMessage out;
  *out.mutable_register_() = message;
  send(out);
}

void FakeWorker::send(const v1::AttemptReport& report) {
  v1::WorkerMessage out;
  *out.mutable_report() = report;
  send(out);
}

void FakeWorker::send(const v1::EstimateResult& result) {
  v1::WorkerMessage out;
  *out.mutable_estimate() = result;
  send(out);
}

void FakeWorker::send_chunk(const v1::Assign& assign, v1::StreamChunk::Kind kind, std::int64_t offset,
                            const std::string& data) {
  v1::WorkerMessage out;
  v1::StreamChunk& chunk = *out.mutable_chunk();
  chunk.set_attempt(assign.attempt());
  chunk.set_epoch(assign.epoch());
  chunk.set_kind(kind);
  chunk.set_offset(offset);
  chunk.set_data(data);
  send(out);
}

void FakeWorker::heartbeat() {
  v1::WorkerMessage out;
  out.mutable_heartbeat()->set_sequence(1);
  send(out);
}

void FakeWorker::enter(const v1::Register& message, std::int64_t estimate_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    estimate_bytes_ = estimate_bytes;
  }
  send(message);
  EXPECT_TRUE(next(v1::ControllerMessage::kRegistered));
}

std::optional<v1::ControllerMessage> FakeWorker::next(v1::ControllerMessage::MessageCase kind) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::optional<v1::ControllerMessage> found;
  changed_.wait_for(lock, kPatience, [&] {
    const auto match = std::find_if(inbox_.begin(), inbox_.end(), [&](const v1::ControllerMessage& each) {
      return each.message_case() == kind;
    });
    if (match == inbox_.end()) return ended_;
    found = *match;
    inbox_.erase(match);
    return true;
  });
  return found;
}

v1::Assign FakeWorker::next_assign() {
  const auto message = next(v1::ControllerMessage::kAssign);
  EXPECT_TRUE(message) << "no Assign came";
  return message ? message->assign() : v1::Assign();
}

v1::Stop FakeWorker::next_stop() {
  const auto message = next(v1::ControllerMessage::kStop);
  EXPECT_TRUE(message) << "no Stop came";
  return message ? message->stop() : v1::Stop();
}

bool FakeWorker::has(v1::ControllerMessage::MessageCase kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(inbox_.begin(), inbox_.end(),
                     [&](const v1::ControllerMessage& each) { return each.message_case() == kind; });
}

v1::AttemptReport FakeWorker::report(const v1::Assign& assign, v1::Attempt::State state,
                                     std::int64_t sequence) {
  v1::AttemptReport report;
  report.set_attempt(assign.attempt());
  report.set_epoch(assign.epoch());
  report.set_state(state);
  report.set_report_sequence(sequence);
  return report;
}

void FakeWorker::run(const v1::Assign& assign) {
  send(report(assign, v1::Attempt::RUNNING, 1));
  EXPECT_TRUE(acknowledged(1));
}

void FakeWorker::finish(const v1::Assign& assign, v1::Attempt::State state, v1::ExitStatus::Reason reason,
                        std::int64_t log_bytes, std::int64_t metrics_bytes) {
  v1::AttemptReport end = report(assign, state, 1000);
  end.mutable_exit()->set_reason(reason);
  end.mutable_exit()->set_message("because of the test");
  end.set_log_bytes(log_bytes);
  end.set_metrics_bytes(metrics_bytes);
  send(end);
  EXPECT_TRUE(acknowledged(end.report_sequence()));
}

bool FakeWorker::acknowledged(std::int64_t sequence) {
  while (const auto message = next(v1::ControllerMessage::kReportAck)) {
    if (message->report_ack().report_sequence() == sequence) return true;
  }
  return false;
}

void FakeWorker::vanish() { context_.TryCancel(); }

grpc::Status FakeWorker::status() {
  std::unique_lock<std::mutex> lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return ended_; }));
  return status_;
}

}  // namespace coat::testing
