// One vocabulary of errors for all who speak the contract, and the one table to gRPC (google.rpc.Status with
// ErrorInfo and, for bad input, BadRequest).
#pragma once

#include <map>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>

#include "spec/job_spec.h"

namespace coat {

struct ServiceError {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  std::string reason;   // UPPER_SNAKE, at most 63 characters: ErrorInfo.reason, domain "coat"
  std::string message;  // for people: what is wrong and what to do
  std::map<std::string, std::string> metadata;  // every variable part of the message
  std::vector<spec::Violation> violations;      // BadRequest.field_violations: "message; fix"
};

grpc::Status to_status(const ServiceError& error);
// Of a status that no one of ours made: reason is empty. A status that is OK is a std::logic_error.
ServiceError from_status(const grpc::Status& status);

// The usual kinds.
ServiceError invalid_argument(std::vector<spec::Violation> violations);    // reason INVALID_FIELD
ServiceError not_found(const std::string& kind, const std::string& name);  // reason <KIND>_NOT_FOUND
ServiceError failed_precondition(const std::string& reason, const std::string& message);
ServiceError unavailable(const std::string& reason, const std::string& message);

// Several lines for a terminal: the message, then one "  field: message; fix" a violation.
std::string format_for_people(const ServiceError& error);

}  // namespace coat
