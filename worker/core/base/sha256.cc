#include "worker/core/base/sha256.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace coat {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->handle == nullptr || EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("libcrypto offers no SHA-256");
  }
}

Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t bytes) {
  if (EVP_DigestUpdate(context_->handle, data, bytes) != 1) throw std::runtime_error("SHA-256 failed");
}

std::string Sha256::hex_digest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(context_->handle, digest, &size) != 1) throw std::runtime_error("SHA-256 failed");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

std::string sha256_hex(const std::string& text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex_digest();
}

}  // namespace coat
