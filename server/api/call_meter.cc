#include "server/api/call_meter.h"

#include <array>
#include <utility>
#include <vector>

namespace coat::api {
namespace {

const std::vector<double> kBuckets = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 300};

std::string code_name(grpc::StatusCode code) {
  constexpr std::array kNames = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

}  // namespace

CallMeter::CallMeter(Metrics& metrics, std::string method)
    : metrics_(metrics), method_(std::move(method)), start_(std::chrono::steady_clock::now()) {}

void CallMeter::finished(grpc::StatusCode code) const {
  metrics_.add_counter("coat_grpc_server_handled_total", "Calls that ended, by method and status.",
                       {{"method", method_}, {"code", code_name(code)}});
  const std::chrono::duration<double> length = std::chrono::steady_clock::now() - start_;
  metrics_.observe("coat_grpc_server_handling_seconds", "From a call's arrival to its end.",
                   {{"method", method_}}, length.count(), kBuckets);
}

}  // namespace coat::api
