// A file of token ids on disk. Read with pread and never mapped: a file that shrinks under a running job is
// then a DataError and not a SIGBUS; the page cache makes both equally fast.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coat::data {

enum class TokenFormat : std::uint8_t { kBytes, kUint16, kUint32 };  // little-endian

// "bytes", "uint16" or "uint32"; anything else is a SpecError of field "data.format".
TokenFormat token_format(const std::string& name);
constexpr int bytes_of(TokenFormat format) {
  return format == TokenFormat::kBytes ? 1 : format == TokenFormat::kUint16 ? 2 : 4;
}

// What one pass over the whole file finds.
struct TokenStatistics {
  std::int64_t tokens = 0;
  std::int64_t file_bytes = 0;
  double unigram_entropy = 0;  // nats a token: -sum p log p over the frequencies of the ids
  std::int64_t distinct = 0;   // ids that occur
  std::string sha256;          // of the file; empty where it was not asked for
};

// Every failure is a DataError of field "data.path" that says what to do. read() may be called from any
// thread.
class TokenFile {
 public:
  // Refuses a path that is missing, a directory, unreadable or empty, and a size that is no multiple of the
  // token's.
  TokenFile(const std::string& path, TokenFormat format);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  std::int64_t size() const { return tokens_; }
  const std::string& path() const { return path_; }

  // Reads everything once and refuses the first token id that is not below `vocab_size`, naming it and its
  // place.
  TokenStatistics scan(std::int64_t vocab_size, bool with_hash) const;

  // `count` tokens from `offset` on. Refuses a file whose size is not the one it was opened with, and ids
  // outside `vocab_size`: the file may have been written to since scan().
  void read(std::int64_t offset, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) const;

 private:
  void check_size() const;
  std::int64_t read_bytes(std::int64_t offset, std::int64_t count, void* out) const;

  std::string path_;
  TokenFormat format_;
  int descriptor_ = -1;
  std::int64_t file_bytes_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace coat::data
