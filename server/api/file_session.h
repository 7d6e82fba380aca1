// StreamLogs and StreamMetrics: an attempt's file from an offset on, piece by piece as the reader takes them;
// with follow, until it is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "proto/coat/v1/job_service.pb.h"
#include "server/api/write_session.h"
#include "server/control/controller.h"

namespace coat::api {

struct FileRequest {
  std::string attempt;  // as the reader named it
  store::StreamKind kind = store::StreamKind::kLog;
  std::int64_t offset = 0;
  bool follow = false;
};

// One step runs at a time: where is the file's end, read a piece, write it, and again.
template <typename Response>
class FileSession : public WriteSession<Response> {
 public:
  FileSession(control::Controller& controller, CallMeter meter, FileRequest request);

 protected:
  struct Piece {
    std::size_t used = 0;                      // bytes; 0: the piece holds no whole record
    std::shared_ptr<const Response> response;  // null: nothing of it is wanted
  };
  // `last`: the file is complete and ends with this piece.
  virtual Piece convert(std::int64_t offset, const std::string& bytes, bool last) const = 0;
  // The last response, at the end of a complete file.
  virtual std::shared_ptr<const Response> end_at(std::int64_t offset) const = 0;

 private:
  std::shared_ptr<FileSession> self() {
    return std::static_pointer_cast<FileSession>(this->shared_from_this());
  }
  void drained() override;
  void closed() override;
  // Goes on when the file is longer than `size` or complete.
  void look(std::int64_t size, bool wait);
  void take(const Result<control::StreamState>& state);
  void send(const control::StreamState& state, const Result<std::string>& bytes);

  control::Controller& controller_;
  const FileRequest request_;
  control::StreamTarget target_;
  std::int64_t offset_;

  std::mutex wait_mutex_;
  std::int64_t waiting_ = 0;
  bool closed_ = false;
};

class LogSession : public FileSession<v1::StreamLogsResponse> {
 public:
  using FileSession::FileSession;

 private:
  Piece convert(std::int64_t offset, const std::string& bytes, bool last) const override;
  std::shared_ptr<const v1::StreamLogsResponse> end_at(std::int64_t offset) const override;
};

// Whole lines, those with a step after `after_step`. A line that is no MetricSample is left out.
class MetricsSession : public FileSession<v1::StreamMetricsResponse> {
 public:
  MetricsSession(control::Controller& controller, CallMeter meter, FileRequest request,
                 std::int64_t after_step);

 private:
  Piece convert(std::int64_t offset, const std::string& bytes, bool last) const override;
  std::shared_ptr<const v1::StreamMetricsResponse> end_at(std::int64_t offset) const override;
  const std::int64_t after_step_;
};

}  // namespace coat::api
