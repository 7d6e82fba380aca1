#include "proto/common/service_error.h"

#include <algorithm>
#include <stdexcept>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

namespace coat {
namespace {

constexpr const char* kDomain = "coat";
// A status travels in the trailing metadata, of which gRPC accepts 8 KiB. There the details grow by a third
// (base64), and a message by up to three times (percent signs); these limits keep the sum below 7.5 KiB.
constexpr std::size_t kMaxMessageBytes = 512;
constexpr std::size_t kMaxMetadataBytes = 1024;
constexpr std::size_t kMaxViolationBytes = 2560;

// Cuts at a border of UTF-8 characters.
std::string cut(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  std::size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

std::string describe(const spec::Violation& violation) {
  return violation.fix.empty() ? violation.message : violation.message + "; " + violation.fix;
}

void add_violations(const std::vector<spec::Violation>& violations, google::rpc::BadRequest& request) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < violations.size(); ++i) {
    const std::string text = cut(describe(violations[i]), kMaxMessageBytes);
    used += text.size() + violations[i].field.size();
    auto* out = request.add_field_violations();
    if (used > kMaxViolationBytes) {
      out->set_description(std::to_string(violations.size() - i) + " more problems; mend these first");
      return;
    }
    out->set_field(violations[i].field);
    out->set_description(text);
  }
}

void read_violations(const google::rpc::BadRequest& request, std::vector<spec::Violation>& violations) {
  for (const auto& violation : request.field_violations()) {
    const std::string& text = violation.description();
    const std::size_t split = text.rfind("; ");
    if (split == std::string::npos) {
      violations.push_back({violation.field(), text, ""});
    } else {
      violations.push_back({violation.field(), text.substr(0, split), text.substr(split + 2)});
    }
  }
}

std::string upper_snake(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c >= 'a' && c <= 'z') {
      result += static_cast<char>(c - 'a' + 'A');
    } else {
      result += c == ' ' || c == '-' ? '_' : c;
    }
  }
  return result;
}

std::string one_line(const spec::Violation& violation) {
  return violation.field.empty() ? describe(violation) : violation.field + ": " + describe(violation);
}

}  // namespace

grpc::Status to_status(const ServiceError& error) {
  google::rpc::Status details;
  const std::string message = cut(error.message, kMaxMessageBytes);
  details.set_code(static_cast<int>(error.code));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(error.reason);
  info.set_domain(kDomain);
  std::size_t used = 0;
  for (const auto& [key, value] : error.metadata) {
    used += key.size() + value.size();
    if (used > kMaxMetadataBytes) break;
    (*info.mutable_metadata())[key] = value;
  }
  details.add_details()->PackFrom(info);
  if (!error.violations.empty()) {
    google::rpc::BadRequest request;
    add_violations(error.violations, request);
    details.add_details()->PackFrom(request);
  }
  return {error.code, message, details.SerializeAsString()};
}

ServiceError from_status(const grpc::Status& status) {
  if (status.ok()) throw std::logic_error("from_status: the status is OK");
  ServiceError error;
  error.code = status.error_code();
  error.message = status.error_message();
  google::rpc::Status details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) return error;
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest request;
    if (detail.UnpackTo(&info) && info.domain() == kDomain) {
      error.reason = info.reason();
      error.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (detail.UnpackTo(&request)) {
      read_violations(request, error.violations);
    }
  }
  return error;
}

ServiceError invalid_argument(std::vector<spec::Violation> violations) {
  ServiceError error{grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "", {}, std::move(violations)};
  if (error.violations.size() == 1) {
    error.message = one_line(error.violations.front());
    error.metadata["field"] = error.violations.front().field;
    return error;
  }
  constexpr std::size_t kNamed = 5;
  error.message = std::to_string(error.violations.size()) + " problems: ";
  for (std::size_t i = 0; i < std::min(kNamed, error.violations.size()); ++i) {
    error.message += (i == 0 ? "" : ", ") + error.violations[i].field;
  }
  if (error.violations.size() > kNamed) error.message += ", ...";
  return error;
}

ServiceError not_found(const std::string& kind, const std::string& name) {
  return {grpc::StatusCode::NOT_FOUND,
          upper_snake(kind) + "_NOT_FOUND",
          "there is no " + kind + " \"" + name + "\"",
          {{kind, name}},
          {}};
}

ServiceError failed_precondition(const std::string& reason, const std::string& message) {
  return {grpc::StatusCode::FAILED_PRECONDITION, reason, message, {}, {}};
}

ServiceError unavailable(const std::string& reason, const std::string& message) {
  return {grpc::StatusCode::UNAVAILABLE, reason, message, {}, {}};
}

std::string format_for_people(const ServiceError& error) {
  std::string result = error.message + "\n";
  // A single violation is the message itself.
  if (error.violations.size() == 1 && error.message == one_line(error.violations.front())) return result;
  for (const spec::Violation& violation : error.violations) result += "  " + one_line(violation) + "\n";
  return result;
}

}  // namespace coat
