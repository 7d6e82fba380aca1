// A value or a ServiceError: what every operation behind an RPC returns.
#pragma once

#include <utility>
#include <variant>

#include "proto/common/service_error.h"

namespace coat {

template <typename T>
class Result {
 public:
  Result(T value)
      : content_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(ServiceError error)
      : content_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return content_.index() == 0; }
  // Asking for the one that is not there throws std::bad_variant_access.
  T& value() { return std::get<0>(content_); }
  const T& value() const { return std::get<0>(content_); }
  const ServiceError& error() const { return std::get<1>(content_); }

 private:
  std::variant<T, ServiceError> content_;
};

}  // namespace coat
