#include "tests/unit/worker/agent/fake_controller.h"

#include <condition_variable>

#include <google/protobuf/util/time_util.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/coat/v1/worker_service.grpc.pb.h"

namespace coat::agent::testing {

using Stream = grpc::ServerReaderWriter<v1::ControllerMessage, v1::WorkerMessage>;
using StreamKey = std::tuple<std::string, std::int64_t, int>;

struct FakeController::Service : v1::WorkerService::Service {
  mutable std::mutex mutex;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  Stream* stream = nullptr;
  grpc::ServerContext* context = nullptr;
  bool answer_reports = true;
  bool answer_chunks = true;
  std::vector<v1::Register> registers;
  std::vector<v1::Heartbeat> heartbeats;
  std::vector<v1::EstimateResult> estimates;
  std::vector<v1::AttemptReport> reports;
  std::map<StreamKey, std::string> streams;

  grpc::Status Connect(grpc::ServerContext* call, Stream* call_stream) override {
    v1::WorkerMessage message;
    while (call_stream->Read(&message)) {
      std::lock_guard lock(mutex);
      if (message.has_register_()) {
        stream = call_stream;
        context = call;
      }
      take(message, *call_stream);
    }
    std::lock_guard lock(mutex);
    if (stream == call_stream) {
      stream = nullptr;
      context = nullptr;
    }
    return grpc::Status::OK;
  }

  // The mutex is held.
  void take(const v1::WorkerMessage& message, Stream& to) {
    if (message.has_register_()) {
      registers.push_back(message.register_());
      v1::ControllerMessage answer;
      *answer.mutable_registered()->mutable_heartbeat_interval() =
          google::protobuf::util::TimeUtil::MillisecondsToDuration(100);
      to.Write(answer);
      for (const v1::AttemptReport& report : message.register_().attempts()) {
        reports.push_back(report);
        ack_report(report, to);
        for (const auto kind : {v1::StreamChunk::LOG, v1::StreamChunk::METRICS}) {
          ack_stream(report.attempt(), report.epoch(), kind, to);
        }
      }
    }
    if (message.has_heartbeat()) heartbeats.push_back(message.heartbeat());
    if (message.has_estimate()) estimates.push_back(message.estimate());
    if (message.has_report()) {
      reports.push_back(message.report());
      ack_report(message.report(), to);
    }
    if (message.has_chunk()) take_chunk(message.chunk(), to);
  }

  void ack_report(const v1::AttemptReport& report, Stream& to) const {
    if (!answer_reports || report.report_sequence() == 0) return;
    v1::ControllerMessage answer;
    answer.mutable_report_ack()->set_attempt(report.attempt());
    answer.mutable_report_ack()->set_epoch(report.epoch());
    answer.mutable_report_ack()->set_report_sequence(report.report_sequence());
    to.Write(answer);
  }

  void take_chunk(const v1::StreamChunk& chunk, Stream& to) {
    EXPECT_LE(chunk.data().size(), std::size_t{256} << 10);
    std::string& held = streams[{chunk.attempt(), chunk.epoch(), chunk.kind()}];
    const auto size = static_cast<std::int64_t>(held.size());
    const std::int64_t end = chunk.offset() + static_cast<std::int64_t>(chunk.data().size());
    EXPECT_LE(chunk.offset(), size) << "a gap";
    if (chunk.offset() <= size && end > size)
      held += chunk.data().substr(static_cast<std::size_t>(size - chunk.offset()));
    if (answer_chunks) ack_stream(chunk.attempt(), chunk.epoch(), chunk.kind(), to);
  }

  void ack_stream(const std::string& attempt, std::int64_t epoch, v1::StreamChunk::Kind kind, Stream& to) {
    v1::ControllerMessage answer;
    answer.mutable_stream_ack()->set_attempt(attempt);
    answer.mutable_stream_ack()->set_epoch(epoch);
    answer.mutable_stream_ack()->set_kind(kind);
    answer.mutable_stream_ack()->set_offset(
        static_cast<std::int64_t>(streams[{attempt, epoch, kind}].size()));
    to.Write(answer);
  }
};

FakeController::FakeController() : service_(std::make_unique<Service>()) { start(); }

FakeController::~FakeController() { stop(); }

std::string FakeController::address() const { return "127.0.0.1:" + std::to_string(service_->port); }

void FakeController::start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials(), &service_->port);
  builder.RegisterService(service_.get());
  service_->server = builder.BuildAndStart();
  ASSERT_NE(service_->server, nullptr) << address();
}

void FakeController::stop() {
  if (!service_->server) return;
  service_->server->Shutdown(std::chrono::system_clock::now());
  service_->server->Wait();
  service_->server.reset();
}

bool FakeController::send(const v1::ControllerMessage& message) {
  std::lock_guard lock(service_->mutex);
  return service_->stream != nullptr && service_->stream->Write(message);
}

void FakeController::assign(const std::string& attempt, std::int64_t epoch,
                            const std::map<std::string, std::string>& labels, int device) {
  v1::ControllerMessage message;
  message.mutable_assign()->set_attempt(attempt);
  message.mutable_assign()->set_epoch(epoch);
  message.mutable_assign()->add_devices(device);
  message.mutable_assign()->mutable_spec()->set_name("job");
  for (const auto& [name, value] : labels) {
    (*message.mutable_assign()->mutable_spec()->mutable_labels())[name] = value;
  }
  EXPECT_TRUE(send(message));
}

void FakeController::stop_attempt(const std::string& attempt, std::int64_t epoch, double grace_seconds,
                                  bool user_cancel) {
  v1::ControllerMessage message;
  message.mutable_stop()->set_attempt(attempt);
  message.mutable_stop()->set_epoch(epoch);
  *message.mutable_stop()->mutable_grace() = google::protobuf::util::TimeUtil::MillisecondsToDuration(
      static_cast<std::int64_t>(grace_seconds * 1e3));
  message.mutable_stop()->set_user_cancel(user_cancel);
  EXPECT_TRUE(send(message));
}

void FakeController::fence(const std::string& attempt, std::int64_t epoch) {
  v1::ControllerMessage message;
  message.mutable_fence()->set_attempt(attempt);
  message.mutable_fence()->set_epoch(epoch);
  EXPECT_TRUE(send(message));
}

void FakeController::drop() {
  std::lock_guard lock(service_->mutex);
  if (service_->context != nullptr) service_->context->TryCancel();
}

void FakeController::answer_reports(bool yes) {
  std::lock_guard lock(service_->mutex);
  service_->answer_reports = yes;
}

void FakeController::answer_chunks(bool yes) {
  std::lock_guard lock(service_->mutex);
  service_->answer_chunks = yes;
}

std::vector<v1::Register> FakeController::registers() const {
  std::lock_guard lock(service_->mutex);
  return service_->registers;
}

std::vector<v1::Heartbeat> FakeController::heartbeats() const {
  std::lock_guard lock(service_->mutex);
  return service_->heartbeats;
}

std::vector<v1::EstimateResult> FakeController::estimates() const {
  std::lock_guard lock(service_->mutex);
  return service_->estimates;
}

std::vector<v1::AttemptReport> FakeController::reports(const std::string& attempt, std::int64_t epoch) const {
  std::lock_guard lock(service_->mutex);
  std::vector<v1::AttemptReport> found;
  for (const v1::AttemptReport& report : service_->reports) {
    if (report.attempt() == attempt && report.epoch() == epoch) found.push_back(report);
  }
  return found;
}

std::optional<v1::AttemptReport> FakeController::latest(const std::string& attempt,
                                                        std::int64_t epoch) const {
  std::optional<v1::AttemptReport> found;
  for (const v1::AttemptReport& report : reports(attempt, epoch)) {
    if (report.report_sequence() > 0) found = report;
  }
  return found;
}

bool FakeController::ended(const std::string& attempt, std::int64_t epoch) const {
  const auto report = latest(attempt, epoch);
  return report && report->has_exit();
}

std::string FakeController::bytes(const std::string& attempt, std::int64_t epoch,
                                  v1::StreamChunk::Kind kind) const {
  std::lock_guard lock(service_->mutex);
  const auto found = service_->streams.find({attempt, epoch, kind});
  return found == service_->streams.end() ? "" : found->second;
}

}  // namespace coat::agent::testing
