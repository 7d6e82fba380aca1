#include "worker/core/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "worker/core/base/error.h"
#include "worker/core/base/sha256.h"

namespace coat::data {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;

[[noreturn]] void refuse(const std::string& message, const std::string& fix) {
  throw DataError("data.path", message, fix);
}

std::int64_t decode(TokenFormat format, const unsigned char* bytes) {
  switch (format) {
    case TokenFormat::kBytes:
      return bytes[0];
    case TokenFormat::kUint16:
      return bytes[0] | bytes[1] << 8;
    case TokenFormat::kUint32:
      break;
  }
  return static_cast<std::int64_t>(bytes[0]) | static_cast<std::int64_t>(bytes[1]) << 8 |
         static_cast<std::int64_t>(bytes[2]) << 16 | static_cast<std::int64_t>(bytes[3]) << 24;
}

[[noreturn]] void refuse_token(const std::string& path, std::int64_t id, std::int64_t offset, int token_bytes,
                               std::int64_t vocab_size) {
  refuse("'" + path + "' holds the token id " + std::to_string(id) + " at token " + std::to_string(offset) +
             " (byte " + std::to_string(offset * token_bytes) + "), outside the vocabulary of " +
             std::to_string(vocab_size),
         "raise model.vocab_size above every id of the file, or name the file's own format in data.format");
}

}  // namespace

TokenFormat token_format(const std::string& name) {
  if (name == "bytes") return TokenFormat::kBytes;
  if (name == "uint16") return TokenFormat::kUint16;
  if (name == "uint32") return TokenFormat::kUint32;
  throw SpecError("data.format", "'" + name + "' is no token format", "write bytes, uint16 or uint32");
}

TokenFile::TokenFile(const std::string& path, TokenFormat format) : path_(path), format_(format) {
  // O_NONBLOCK: a named pipe must be refused below rather than waited for here.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    const int error = errno;
    const std::string why = "cannot open '" + path + "': " + std::strerror(error);
    if (error == ENOENT) refuse(why, "name a file that exists on the worker's machine");
    if (error == EACCES) refuse(why, "let the user that the worker runs as read it");
    refuse(why, "name a readable file");
  }
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) refuse("cannot look at '" + path + "'", "name a readable file");
    if (S_ISDIR(status.st_mode)) refuse("'" + path + "' is a directory", "name one file of tokens");
    if (!S_ISREG(status.st_mode)) refuse("'" + path + "' is not a regular file", "name one file of tokens");
    file_bytes_ = status.st_size;
    if (file_bytes_ == 0) refuse("'" + path + "' is empty", "name a file that holds tokens");
    if (file_bytes_ % bytes_of(format) != 0) {
      refuse("'" + path + "' has " + std::to_string(file_bytes_) + " bytes, no multiple of the " +
                 std::to_string(bytes_of(format)) + " bytes of a token",
             "write the whole file, or name its own format in data.format");
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  tokens_ = file_bytes_ / bytes_of(format);
}

TokenFile::~TokenFile() { ::close(descriptor_); }

void TokenFile::check_size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || status.st_size != file_bytes_) {
    refuse("'" + path_ + "' had " + std::to_string(file_bytes_) + " bytes when the job started and has " +
               std::to_string(status.st_size) + " now",
           "leave the file as it is while jobs read it; write a new version beside it and rename it");
  }
}

std::int64_t TokenFile::read_bytes(std::int64_t offset, std::int64_t count, void* out) const {
  auto* target = static_cast<char*>(out);
  std::int64_t done = 0;
  while (done < count) {
    const ssize_t got =
        ::pread(descriptor_, target + done, static_cast<std::size_t>(count - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      refuse("cannot read '" + path_ + "' at byte " + std::to_string(offset + done) + ": " +
                 std::strerror(errno),
             "check the disk that holds it");
    }
    if (got == 0) check_size();
    if (got == 0) refuse("'" + path_ + "' ended early", "write the whole file");
    done += got;
  }
  return done;
}

TokenStatistics TokenFile::scan(std::int64_t vocab_size, bool with_hash) const {
  TokenStatistics result{.tokens = tokens_, .file_bytes = file_bytes_};
  const int width = bytes_of(format_);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab_size), 0);
  std::vector<unsigned char> block(static_cast<std::size_t>(std::min(kBlockBytes, file_bytes_)));
  Sha256 hash;
  for (std::int64_t start = 0; start < file_bytes_; start += kBlockBytes) {
    const std::int64_t bytes = std::min(kBlockBytes, file_bytes_ - start);
    read_bytes(start, bytes, block.data());
    if (with_hash) hash.update(block.data(), static_cast<std::size_t>(bytes));
    for (std::int64_t at = 0; at < bytes; at += width) {
      const std::int64_t id = decode(format_, block.data() + at);
      if (id >= vocab_size) refuse_token(path_, id, (start + at) / width, width, vocab_size);
      ++counts[static_cast<std::size_t>(id)];
    }
  }
  check_size();
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(tokens_);
    result.unigram_entropy -= p * std::log(p);
    ++result.distinct;
  }
  if (with_hash) result.sha256 = hash.hex_digest();
  return result;
}

void TokenFile::read(std::int64_t offset, std::int64_t count, std::int64_t vocab_size,
                     std::int32_t* out) const {
  check_size();
  const int width = bytes_of(format_);
  std::vector<unsigned char> raw(static_cast<std::size_t>(count * width));
  read_bytes(offset * width, count * width, raw.data());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = decode(format_, raw.data() + i * width);
    if (id >= vocab_size) refuse_token(path_, id, offset + i, width, vocab_size);
    out[i] = static_cast<std::int32_t>(id);
  }
}

}  // namespace coat::data
