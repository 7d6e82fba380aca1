// Errors of the service as words and exit codes.
#include "client/cli/commands.h"

namespace coat::cli {
namespace {

ExitCode code_of(const ServiceError& error) {
  if (error.reason == client::kStopped) return ExitCode::kInterrupted;
  if (error.reason == client::kTimedOut) return ExitCode::kTimedOut;
  switch (error.code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return ExitCode::kUsage;
    case grpc::StatusCode::NOT_FOUND:
      return ExitCode::kNotFound;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ExitCode::kUnreachable;
    default:
      return ExitCode::kRefused;
  }
}

}  // namespace

ExitCode report(Context& context, const ServiceError& error) {
  std::ostream& err = context.terminal.err;
  const ExitCode code = code_of(error);
  if (code == ExitCode::kInterrupted) return code;
  if (code == ExitCode::kTimedOut) {
    err << "coat: the time of --timeout is up; the job goes on\n";
  } else if (code == ExitCode::kUnreachable && error.reason.empty()) {
    const bool late = error.code == grpc::StatusCode::DEADLINE_EXCEEDED;
    err << "coat: " << (late ? "no answer in time from " : "cannot reach ") << "the service at "
        << context.server << " (" << error.message
        << ")\n  is coat-controller running there? Name another address with --server or COAT_SERVER\n";
  } else {
    err << "coat: " << format_for_people(error);
  }
  return code;
}

ExitCode outcome_code(const v1::Job& job) {
  switch (job.state()) {
    case v1::Job::SUCCEEDED:
      return ExitCode::kOk;
    case v1::Job::CANCELLED:
      return ExitCode::kJobCancelled;
    default:
      return ExitCode::kJobFailed;
  }
}

}  // namespace coat::cli
