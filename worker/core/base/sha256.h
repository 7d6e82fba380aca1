// SHA-256, for the files of checkpoints and the identity of training data.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace coat {

// Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(const void* data, std::size_t bytes);
  // 64 lower-case hexadecimal digits. Once; nothing may be added after it.
  std::string hex_digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(const std::string& text);

}  // namespace coat
