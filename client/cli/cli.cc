#include "client/cli/cli.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>

#include <CLI/CLI.hpp>

#include "client/cli/commands.h"
#include "client/cli/help_text.h"
#include "client/cli/human.h"
#include "spec/fields.h"

namespace coat::cli {
namespace {

constexpr const char* kDefaultServer = "127.0.0.1:7460";
constexpr std::size_t kDefaultListLimit = 50;

// What CLI11 fills in.
struct Options {
  std::string server;
  std::string format = "table";
  bool no_headers = false;
  std::string file;
  std::vector<std::string> set;
  std::string request_id;
  bool wait = false;
  bool dry_run = false;
  std::vector<std::string> jobs;
  std::string job;
  std::vector<std::string> states;
  std::string name_prefix;
  std::vector<std::string> labels;
  std::size_t limit = kDefaultListLimit;
  bool all = false;
  int attempt = 0;
  bool follow = false;
  std::int64_t offset = 0;
  std::string timeout;
};

// Wrong usage: the message names the option and the fix.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Command = std::function<ExitCode(Context&)>;

std::vector<std::pair<std::string, std::string>> split_pairs(const std::string& option,
                                                             const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UsageError(option + ": \"" + text + "\" is not KEY=VALUE; write for example " +
                       (option == "--set" ? "--set training.steps=100" : "--label team=vision"));
    }
    pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

std::vector<v1::Job::State> parse_states(const std::vector<std::string>& texts) {
  std::vector<v1::Job::State> states;
  for (std::string text : texts) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
    v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
    if (!v1::Job::State_Parse(text, &state) || state == v1::Job::STATE_UNSPECIFIED) {
      throw UsageError("--state: \"" + text +
                       "\" is not known; use PENDING, RUNNING, CANCELLING, SUCCEEDED, FAILED or CANCELLED");
    }
    states.push_back(state);
  }
  return states;
}

WaitArguments wait_arguments(const Options& options) {
  WaitArguments arguments{options.job, std::nullopt};
  if (options.timeout.empty()) return arguments;
  arguments.timeout = parse_duration(options.timeout);
  if (!arguments.timeout) {
    throw UsageError("--timeout: \"" + options.timeout +
                     "\" is not a duration; write for example 90s, 10m or 1h30m");
  }
  return arguments;
}

Format parse_format(const std::string& text) {
  if (text == "wide") return Format::kWide;
  if (text == "json") return Format::kJson;
  if (text == "yaml") return Format::kYaml;
  if (text == "name") return Format::kName;
  return Format::kTable;
}

class CommandLine {
 public:
  explicit CommandLine(Command& chosen) : chosen_(chosen) {
    app_.name("coat");
    app_.description("Trains language models with COAT: jobs in, figures out.");
    app_.footer(kHelp);
    app_.set_version_flag("--version", std::string("coat ") + kVersion);
    app_.require_subcommand(1);
    app_.add_option("--server", options_.server, "the controller's HOST:PORT (COAT_SERVER; 127.0.0.1:7460)");
    add_submit();
    add_queries();
    add_following();
    add_estimate();
  }

  CLI::App& app() { return app_; }
  const Options& options() const { return options_; }

 private:
  CLI::App* add(const char* name, const char* description, const char* footer,
                const std::vector<std::string>& formats, Command command) {
    CLI::App* sub = app_.add_subcommand(name, description);
    sub->footer(footer);
    sub->add_option("--server", options_.server, "the controller's HOST:PORT (COAT_SERVER; 127.0.0.1:7460)");
    if (!formats.empty()) {
      sub->add_option("-o,--output", options_.format, "format of what is printed")
          ->check(CLI::IsMember(formats));
    }
    sub->callback([this, command = std::move(command)] { chosen_ = command; });
    return sub;
  }

  void add_file(CLI::App* sub) {
    sub->add_option("FILE", options_.file, "a YAML job file; - is standard input")->required();
    sub->add_option("--set", options_.set, "changes a field: training.steps=400; may be repeated")
        ->allow_extra_args(false);
  }

  void add_submit() {
    CLI::App* sub = add("submit", "Submits a job and prints its id", kSubmitHelp,
                        {"table", "json", "yaml", "name"}, [this](Context& context) {
                          return submit(context, {options_.file, split_pairs("--set", options_.set),
                                                  options_.request_id, options_.wait, options_.dry_run});
                        });
    add_file(sub);
    sub->add_flag("--wait", options_.wait, "shows its progress and ends with its exit code");
    sub->add_flag("--dry-run", options_.dry_run, "checks everything and submits nothing");
    sub->add_option("--request-id", options_.request_id,
                    "makes a repeated submit harmless: 1 to 64 characters");
  }

  void add_queries() {
    const std::vector<std::string> all_formats = {"table", "wide", "json", "yaml", "name"};
    CLI::App* sub = add("get", "Shows jobs", kGetHelp, all_formats,
                        [this](Context& context) { return get(context, options_.jobs); });
    sub->add_option("JOB", options_.jobs, "ids of jobs")->required();
    add_headers(sub);

    sub = add("list", "Lists jobs, newest first", kListHelp, all_formats, [this](Context& context) {
      return list(context, {parse_states(options_.states), options_.name_prefix,
                            split_pairs("--label", options_.labels), options_.all ? 0 : options_.limit});
    });
    sub->add_option("--state", options_.states, "only jobs in these states, separated by commas")
        ->delimiter(',')
        ->allow_extra_args(false);
    sub->add_option("--name", options_.name_prefix, "only jobs whose name begins so");
    sub->add_option("--label", options_.labels, "only jobs with KEY=VALUE; may be repeated")
        ->allow_extra_args(false);
    sub->add_option("--limit", options_.limit, "at most so many (50)")->check(CLI::Range(1, 1'000'000));
    sub->add_flag("--all", options_.all, "without a limit");
    add_headers(sub);

    sub = add("describe", "Tells everything about a job", kDescribeHelp, {"table", "json", "yaml"},
              [this](Context& context) { return describe(context, options_.job); });
    add_job(sub);

    sub = add("workers", "Lists workers and their devices", kWorkersHelp, all_formats,
              [](Context& context) { return workers(context); });
    add_headers(sub);

    sub = add("cancel", "Ends jobs, with a checkpoint", kCancelHelp, all_formats,
              [this](Context& context) { return cancel(context, options_.jobs); });
    sub->add_option("JOB", options_.jobs, "ids of jobs")->required();
    add_headers(sub);
  }

  void add_following() {
    CLI::App* sub = add("watch", "Shows a job's progress until it ends", kWatchHelp, {"table", "json"},
                        [this](Context& context) { return watch(context, wait_arguments(options_)); });
    add_job(sub);
    sub->add_option("--timeout", options_.timeout, "longest time to watch, such as 10m");

    sub = add("wait", "Waits until a job has ended", kWaitHelp, {"table", "json", "yaml", "name"},
              [this](Context& context) { return wait(context, wait_arguments(options_)); });
    add_job(sub);
    sub->add_option("--timeout", options_.timeout, "longest time to wait, such as 10m");

    sub = add("logs", "Prints what a job's trainer wrote", kLogsHelp, {}, [this](Context& context) {
      return logs(context, {options_.job, options_.attempt, options_.follow, options_.offset});
    });
    add_job(sub);
    sub->add_option("--attempt", options_.attempt, "which attempt (the latest)")
        ->check(CLI::Range(1, 1'000'000));
    sub->add_flag("-f,--follow", options_.follow, "goes on until the job has ended");
    sub->add_option("--offset", options_.offset, "skips so many bytes")->check(CLI::NonNegativeNumber);
  }

  void add_estimate() {
    CLI::App* sub = add("estimate", "Tells the memory that a job would hold", kEstimateHelp,
                        {"table", "json", "yaml"}, [this](Context& context) {
                          return estimate(context, {options_.file, split_pairs("--set", options_.set)});
                        });
    add_file(sub);
  }

  void add_job(CLI::App* sub) { sub->add_option("JOB", options_.job, "the id of a job")->required(); }
  void add_headers(CLI::App* sub) {
    sub->add_flag("--no-headers", options_.no_headers, "tables without their first line");
  }

  Command& chosen_;
  Options options_;
  CLI::App app_;
};

std::string server_of(const Options& options, const Terminal& terminal) {
  std::string server = options.server;
  std::string source = "--server";
  if (server.empty()) {
    server = terminal.server_of_environment;
    source = "COAT_SERVER";
  }
  if (server.empty()) return kDefaultServer;
  const std::size_t colon = server.rfind(':');
  const bool has_port = colon != std::string::npos && colon > 0 && colon + 1 < server.size() &&
                        server.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (!has_port)
    throw UsageError(source + ": \"" + server + "\" is not HOST:PORT; write for example 127.0.0.1:7460");
  return server;
}

ExitCode run_command(const CommandLine& line, const Command& command, Terminal& terminal) {
  const Options& options = line.options();
  const std::string server = server_of(options, terminal);
  client::ClientOptions client_options;
  client_options.address = server;
  client_options.stop = terminal.stop;
  client::JobClient client(client_options);
  Context context{client,
                  terminal,
                  {parse_format(options.format), !options.no_headers},
                  server,
                  options.server.empty() ? "coat" : "coat --server " + server};
  return command(context);
}

// The first word that is no option, where no command has that name.
std::optional<std::string> unknown_command(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const CLI::App* sub : app.get_subcommands({})) known.push_back(sub->get_name());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--server") ++i;
    if (word.empty() || word.front() == '-') continue;
    if (std::find(known.begin(), known.end(), word) != known.end()) return std::nullopt;
    const std::optional<std::string> nearest = spec::nearest_name(word, known);
    return "\"" + word + "\" is no command" +
           (nearest ? "; did you mean " + *nearest + "?" : "; use " + spec::one_of(known));
  }
  return std::nullopt;
}

}  // namespace

ExitCode run(const std::vector<std::string>& arguments, Terminal& terminal) {
  Command command;
  CommandLine line(command);
  if (const auto problem = unknown_command(line.app(), arguments)) {
    terminal.err << "coat: " << *problem << "\n  see `coat --help`\n";
    return ExitCode::kUsage;
  }
  try {
    // CLI11 takes them from the back.
    line.app().parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& help) {
    line.app().exit(help, terminal.out, terminal.err);
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    const auto chosen = line.app().get_subcommands();
    terminal.err << "coat: " << error.what() << "\n  see `coat "
                 << (chosen.empty() ? "" : chosen.front()->get_name() + " ") << "--help`\n";
    return ExitCode::kUsage;
  }
  try {
    return run_command(line, command, terminal);
  } catch (const UsageError& error) {
    terminal.err << "coat: " << error.what() << "\n";
    return ExitCode::kUsage;
  } catch (const std::exception& error) {
    terminal.err << "coat: " << error.what() << "\n";
    return ExitCode::kRefused;
  }
}

}  // namespace coat::cli
