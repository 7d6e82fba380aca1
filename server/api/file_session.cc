#include "server/api/file_session.h"

#include <utility>

#include "proto/common/message_json.h"

namespace coat::api {
namespace {

constexpr std::size_t kPieceBytes = 256 << 10;

ServiceError past_end(std::int64_t offset, std::int64_t size) {
  ServiceError error;
  error.code = grpc::StatusCode::OUT_OF_RANGE;
  error.reason = "OFFSET_PAST_END";
  error.message =
      "offset " + std::to_string(offset) + " is past the end, which is at " + std::to_string(size);
  error.metadata = {{"offset", std::to_string(offset)}, {"size", std::to_string(size)}};
  return error;
}

}  // namespace

template <typename Response>
FileSession<Response>::FileSession(control::Controller& controller, CallMeter meter, FileRequest request)
    : WriteSession<Response>(std::move(meter)),
      controller_(controller),
      request_(std::move(request)),
      offset_(request_.offset) {}

template <typename Response>
void FileSession<Response>::drained() {
  if (this->ended()) return;
  if (!target_.job.empty()) {
    look(offset_, request_.follow);
    return;
  }
  controller_.find_stream(request_.attempt, [self = self()](const Result<control::StreamTarget>& target) {
    if (!target.ok()) {
      self->finish(to_status(target.error()));
      return;
    }
    self->target_ = target.value();
    self->look(self->offset_, self->request_.follow);
  });
}

template <typename Response>
void FileSession<Response>::look(std::int64_t size, bool wait) {
  // The lock is held over the call, so that an answer from another thread finds the id in place; a forgotten
  // wait never answers.
  const std::lock_guard<std::mutex> lock(wait_mutex_);
  if (closed_) return;
  waiting_ = controller_.stream_state(
      target_, request_.kind, size, wait,
      [self = self()](const Result<control::StreamState>& state) { self->take(state); });
}

template <typename Response>
void FileSession<Response>::take(const Result<control::StreamState>& result) {
  if (!result.ok()) {
    this->finish(to_status(result.error()));
    return;
  }
  const control::StreamState state = result.value();
  if (state.size > offset_) {
    controller_.read_stream(
        target_, request_.kind, offset_, kPieceBytes,
        [self = self(), state](const Result<std::string>& bytes) { self->send(state, bytes); });
  } else if (!state.complete) {
    this->finish(grpc::Status::OK);  // not followed: that was all for now
  } else if (offset_ > state.size) {
    this->finish(to_status(past_end(offset_, state.size)));
  } else {
    this->push({end_at(offset_)}, grpc::Status::OK);
  }
}

template <typename Response>
void FileSession<Response>::send(const control::StreamState& state, const Result<std::string>& bytes) {
  if (!bytes.ok()) {
    this->finish(to_status(bytes.error()));
    return;
  }
  const auto size = static_cast<std::int64_t>(bytes.value().size());
  const bool last = state.complete && offset_ + size >= state.size;
  Piece piece = convert(offset_, bytes.value(), last);
  const std::int64_t read_to = offset_ + size;
  if (piece.used == 0 && !last && bytes.value().size() < kPieceBytes) {
    // The record's rest is still to come.
    if (request_.follow) {
      look(read_to, true);
    } else {
      this->finish(grpc::Status::OK);
    }
    return;
  }
  // A record that is longer than a piece cannot be one of ours and is passed over.
  offset_ = piece.used == 0 ? read_to : offset_ + static_cast<std::int64_t>(piece.used);
  if (piece.response) {
    this->push({std::move(piece.response)});
  } else {
    look(offset_, request_.follow);
  }
}

template <typename Response>
void FileSession<Response>::closed() {
  const std::lock_guard<std::mutex> lock(wait_mutex_);
  closed_ = true;
  if (waiting_ != 0) controller_.forget_stream(waiting_);
}

template class FileSession<v1::StreamLogsResponse>;
template class FileSession<v1::StreamMetricsResponse>;

LogSession::Piece LogSession::convert(std::int64_t offset, const std::string& bytes, bool) const {
  auto response = std::make_shared<v1::StreamLogsResponse>();
  response->set_offset(offset);
  response->set_data(bytes);
  return {bytes.size(), std::move(response)};
}

std::shared_ptr<const v1::StreamLogsResponse> LogSession::end_at(std::int64_t offset) const {
  auto response = std::make_shared<v1::StreamLogsResponse>();
  response->set_offset(offset);
  response->set_end(true);
  return response;
}

MetricsSession::MetricsSession(control::Controller& controller, CallMeter meter, FileRequest request,
                               std::int64_t after_step)
    : FileSession(controller, std::move(meter), std::move(request)), after_step_(after_step) {}

MetricsSession::Piece MetricsSession::convert(std::int64_t, const std::string& bytes, bool last) const {
  Piece piece;
  auto response = std::make_shared<v1::StreamMetricsResponse>();
  while (piece.used < bytes.size()) {
    std::size_t end = bytes.find('\n', piece.used);
    if (end == std::string::npos && !last) break;
    end = std::min(end, bytes.size());
    v1::MetricSample sample;
    const bool whole = message_from_json(bytes.substr(piece.used, end - piece.used), &sample).empty();
    if (whole && sample.step() > after_step_) *response->add_samples() = std::move(sample);
    piece.used = std::min(end + 1, bytes.size());
  }
  if (response->samples_size() > 0) piece.response = std::move(response);
  return piece;
}

std::shared_ptr<const v1::StreamMetricsResponse> MetricsSession::end_at(std::int64_t) const {
  auto response = std::make_shared<v1::StreamMetricsResponse>();
  response->set_end(true);
  return response;
}

}  // namespace coat::api
