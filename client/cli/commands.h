// The commands of `coat`, each with what was asked for on its command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"
#include "client/lib/job_client.h"

namespace coat::cli {

struct Context {
  client::JobClient& client;
  Terminal& terminal;
  OutputOptions output;
  std::string server;   // for messages
  std::string command;  // "coat", or with --server, for hints that can be typed as they stand
};

using Overrides = std::vector<std::pair<std::string, std::string>>;

struct SubmitArguments {
  std::string file;  // "-": standard input
  Overrides set;
  std::string request_id;
  bool wait = false;
  bool dry_run = false;
};

struct EstimateArguments {
  std::string file;
  Overrides set;
};

struct ListArguments {
  std::vector<v1::Job::State> states;
  std::string name_prefix;
  std::vector<std::pair<std::string, std::string>> labels;
  std::size_t limit = 0;
};

struct LogsArguments {
  std::string job;
  int attempt = 0;  // 0: the latest
  bool follow = false;
  std::int64_t offset = 0;
};

struct WaitArguments {
  std::string job;
  std::optional<std::chrono::milliseconds> timeout;
};

ExitCode submit(Context& context, const SubmitArguments& arguments);
ExitCode estimate(Context& context, const EstimateArguments& arguments);
ExitCode get(Context& context, const std::vector<std::string>& jobs);
ExitCode list(Context& context, const ListArguments& arguments);
ExitCode describe(Context& context, const std::string& job);
ExitCode workers(Context& context);
ExitCode cancel(Context& context, const std::vector<std::string>& jobs);
ExitCode watch(Context& context, const WaitArguments& arguments);
ExitCode wait(Context& context, const WaitArguments& arguments);
ExitCode logs(Context& context, const LogsArguments& arguments);

// Shows the job on `out` until it has ended; `job` is what is known of it. Answers with its outcome, told on
// `out` too.
ExitCode follow(Context& context, std::ostream& out, bool is_tty, v1::Job job,
                std::optional<std::chrono::steady_clock::time_point> deadline);

// Tells the error on terminal.err.
ExitCode report(Context& context, const ServiceError& error);
ExitCode outcome_code(const v1::Job& job);

}  // namespace coat::cli
