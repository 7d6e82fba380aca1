#include "worker/agent/controller_stream.h"

#include <algorithm>
#include <random>

#include <google/protobuf/util/time_util.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include "proto/coat/v1/worker_service.grpc.pb.h"

namespace coat::agent {
namespace {

constexpr std::chrono::milliseconds kDefaultHeartbeat{5000};
// For the controller's answer to Register.
constexpr std::chrono::seconds kRegisterPatience{30};

// A channel for each dial, with no state from the last one: the waiting between dials is ours alone.
std::shared_ptr<grpc::Channel> dial(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

struct ControllerStream::Session {
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>> stream;
  bool broken = false;      // under the stream's mutex
  bool registered = false;  // the controller has answered
  std::chrono::milliseconds heartbeat = kDefaultHeartbeat;
};

ControllerStream::ControllerStream(ControllerStreamOptions options, StreamContent& content)
    : options_(std::move(options)), content_(content), backoff_(options_.backoff, std::random_device{}()) {}

void ControllerStream::start() {
  thread_ = std::thread([this] { run(); });
}

void ControllerStream::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ControllerStream::wake() {
  {
    std::lock_guard lock(mutex_);
    news_ = true;
  }
  wake_.notify_all();
}

void ControllerStream::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const grpc::Status status = run_session();
    lock.lock();
    if (stopping_) return;
    log_end(status);
    wake_.wait_for(lock, backoff_.next(), [this] { return stopping_; });
  }
}

void ControllerStream::log_end(const grpc::Status& status) {
  const std::string error = status.ok() ? "the controller ended the stream" : status.error_message();
  if (error == last_error_) return;
  last_error_ = error;
  if (status.error_code() == grpc::StatusCode::ABORTED) {
    spdlog::error("controller {}: another worker has taken over this worker's id (--id): {}",
                  options_.controller, error);
  } else {
    spdlog::warn("controller {}: {}; running jobs go on, and it is dialled again", options_.controller,
                 error);
  }
}

grpc::Status ControllerStream::run_session() {
  grpc::ClientContext context;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return grpc::Status::CANCELLED;
    context_ = &context;
  }
  const auto channel = dial(options_.controller);
  const auto stub = v1::WorkerService::NewStub(channel);
  Session session;
  session.stream = stub->Connect(&context);
  v1::WorkerMessage first;
  *first.mutable_register_() = content_.make_register();
  if (session.stream->Write(first)) {
    std::thread reader([this, &session] { read_loop(session); });
    // A call that broke brings its status by itself, which a cancel would hide.
    if (write_loop(session) == WriteEnd::kOurs) context.TryCancel();
    reader.join();
  }
  connected_ = false;
  v1::ControllerMessage rest;
  while (session.stream->Read(&rest)) {
  }
  const grpc::Status status = session.stream->Finish();
  std::lock_guard lock(mutex_);
  context_ = nullptr;
  return status;
}

void ControllerStream::read_loop(Session& session) {
  v1::ControllerMessage message;
  while (session.stream->Read(&message)) {
    if (!message.has_registered()) {
      content_.on_message(message);
      wake();
      continue;
    }
    const auto interval =
        google::protobuf::util::TimeUtil::DurationToMilliseconds(message.registered().heartbeat_interval());
    std::lock_guard lock(mutex_);
    if (interval > 0) session.heartbeat = std::chrono::milliseconds(interval);
    session.registered = true;
    news_ = true;
    connected_ = true;
    backoff_.reset();
    last_error_.clear();
    spdlog::info("registered with controller {} (version {})", options_.controller,
                 message.registered().controller_version());
    wake_.notify_all();
  }
  std::lock_guard lock(mutex_);
  session.broken = true;
  wake_.notify_all();
}

bool ControllerStream::is_registered(Session& session) {
  std::lock_guard lock(mutex_);
  return session.registered;
}

// True when there may be something to send; false at the deadline or when the session is over.
bool ControllerStream::wait_for_work(Session& session, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  wake_.wait_until(lock, deadline,
                   [&] { return stopping_ || session.broken || (session.registered && news_); });
  news_ = false;
  return !stopping_ && !session.broken && session.registered;
}

ControllerStream::WriteEnd ControllerStream::write_loop(Session& session) {
  const auto register_deadline = std::chrono::steady_clock::now() + kRegisterPatience;
  auto heartbeat_at = register_deadline;
  while (true) {
    const bool may_send = wait_for_work(session, heartbeat_at);
    std::chrono::milliseconds interval;
    {
      std::lock_guard lock(mutex_);
      if (session.broken) return WriteEnd::kTheirs;
      if (stopping_) return WriteEnd::kOurs;
      interval = session.heartbeat;
    }
    if (!may_send && !is_registered(session)) return WriteEnd::kOurs;  // Register was not answered in time
    heartbeat_at = std::min(heartbeat_at, std::chrono::steady_clock::now() + interval);
    while (true) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= heartbeat_at) {
        v1::WorkerMessage beat;
        *beat.mutable_heartbeat() = content_.make_heartbeat();
        if (!session.stream->Write(beat)) return WriteEnd::kTheirs;
        heartbeat_at = now + interval;
      }
      const auto message = content_.next_message();
      if (!message) break;
      if (!session.stream->Write(*message)) return WriteEnd::kTheirs;
    }
  }
}

}  // namespace coat::agent
