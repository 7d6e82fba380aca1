// Logs and metric samples of attempts: <root>/<job id>/<attempt number>/{log,metrics.jsonl}, each one stream
// of bytes that is only ever appended to. Thread-safe; every call blocks on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

namespace coat::store {

enum class StreamKind { kLog, kMetrics };

class AttemptFiles {
 public:
  explicit AttemptFiles(std::filesystem::path root);

  // Appends what of `data` continues the file (it starts at `offset` of the stream): bytes that are there
  // already are skipped, and after a gap nothing is written. Returns the file's size, synced to disk. Throws
  // StoreError. `job` is the full name, "jobs/J".
  std::int64_t append(const std::string& job, int attempt, StreamKind kind, std::int64_t offset,
                      const std::string& data);
  // 0 where there is no file.
  std::int64_t size(const std::string& job, int attempt, StreamKind kind) const;
  // At most `limit` bytes from `offset`; empty at the end. Throws StoreError.
  std::string read(const std::string& job, int attempt, StreamKind kind, std::int64_t offset,
                   std::size_t limit) const;

 private:
  std::filesystem::path file(const std::string& job, int attempt, StreamKind kind) const;
  std::filesystem::path root_;
  std::mutex append_mutex_;
};

}  // namespace coat::store
