// The core's errors. Each kind ends the trainer with its own exit code (worker/trainer maps them).
#pragma once

#include <stdexcept>
#include <string>

namespace coat {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The spec asks for something that cannot be; `field` is its path, `fix` what to write instead.
class SpecError : public Error {
 public:
  SpecError(std::string field_path, const std::string& message, std::string how_to_fix)
      : Error(message), field(std::move(field_path)), fix(std::move(how_to_fix)) {}
  std::string field;
  std::string fix;
};

class DataError : public Error {
 public:
  DataError(std::string field_path, const std::string& message, std::string how_to_fix)
      : Error(message), field(std::move(field_path)), fix(std::move(how_to_fix)) {}
  std::string field;
  std::string fix;
};

class CheckpointError : public Error {
 public:
  using Error::Error;
};
class OutOfDeviceMemoryError : public Error {
 public:
  using Error::Error;
};
class NonFiniteLossError : public Error {
 public:
  using Error::Error;
};
class CollectiveError : public Error {
 public:
  using Error::Error;
};
class DeviceFaultError : public Error {
 public:
  using Error::Error;
};
// A newer attempt owns the checkpoint folder.
class FencedError : public Error {
 public:
  using Error::Error;
};
// The operation has no implementation on this device.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

}  // namespace coat
