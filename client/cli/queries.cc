// Commands that ask once and print: get, list, describe, workers; and cancel.
#include "client/cli/commands.h"
#include "client/cli/describe.h"
#include "client/cli/progress_view.h"

namespace coat::cli {
namespace {

bool is_message_format(Format format) { return format == Format::kJson || format == Format::kYaml; }

// Every event of the job up to now; fewer where the service no longer keeps the oldest.
std::vector<v1::Event> events_of(Context& context, const v1::Job& job) {
  std::vector<v1::Event> events;
  constexpr std::chrono::seconds kPatience{10};
  client::StreamOptions options;
  options.stop = context.terminal.stop;
  options.deadline = std::chrono::steady_clock::now() + kPatience;
  const auto collect = [&](const v1::WatchJobsResponse& response) {
    if (response.has_event()) events.push_back(response.event());
    return !response.has_event() || response.event().sequence() < job.last_sequence();
  };
  if (job.last_sequence() > 0) static_cast<void>(context.client.watch(job.name(), 0, options, collect));
  return events;
}

}  // namespace

ExitCode get(Context& context, const std::vector<std::string>& names) {
  std::vector<v1::Job> jobs;
  ExitCode code = ExitCode::kOk;
  for (const std::string& name : names) {
    auto job = context.client.get(name);
    if (job.ok()) {
      jobs.push_back(std::move(job.value()));
    } else {
      code = report(context, job.error());
    }
  }
  if (jobs.empty()) return code;
  if (names.size() == 1 && is_message_format(context.output.format)) {
    print_message(context.terminal.out, context.output.format, jobs.front());
  } else {
    print_jobs(context.terminal, context.output, jobs);
  }
  return code;
}

ExitCode list(Context& context, const ListArguments& arguments) {
  client::ListFilter filter;
  filter.states = arguments.states;
  filter.name_prefix = arguments.name_prefix;
  filter.limit = arguments.limit;
  filter.labels.insert(arguments.labels.begin(), arguments.labels.end());
  const auto jobs = context.client.list(filter);
  if (!jobs.ok()) return report(context, jobs.error());
  const Format format = context.output.format;
  if (jobs.value().empty() && (format == Format::kTable || format == Format::kWide)) {
    context.terminal.err << "no jobs\n";
    return ExitCode::kOk;
  }
  print_jobs(context.terminal, context.output, jobs.value());
  return ExitCode::kOk;
}

ExitCode describe(Context& context, const std::string& name) {
  JobDetails details;
  auto job = context.client.get(name);
  if (!job.ok()) return report(context, job.error());
  details.job = std::move(job.value());
  if (is_message_format(context.output.format)) {
    print_message(context.terminal.out, context.output.format, details.job);
    return ExitCode::kOk;
  }
  auto attempts = context.client.attempts(name);
  if (!attempts.ok()) return report(context, attempts.error());
  details.attempts = std::move(attempts.value());
  details.events = events_of(context, details.job);
  print_details(context.terminal, details);
  return ExitCode::kOk;
}

ExitCode workers(Context& context) {
  const auto workers = context.client.workers();
  if (!workers.ok()) return report(context, workers.error());
  const Format format = context.output.format;
  if (workers.value().empty() && (format == Format::kTable || format == Format::kWide)) {
    context.terminal.err
        << "no worker has connected; start one: coat-worker --state-dir DIR --controller HOST:7461\n";
    return ExitCode::kOk;
  }
  print_workers(context.terminal, context.output, workers.value());
  return ExitCode::kOk;
}

ExitCode cancel(Context& context, const std::vector<std::string>& names) {
  std::vector<v1::Job> jobs;
  ExitCode code = ExitCode::kOk;
  for (const std::string& name : names) {
    auto job = context.client.cancel(name);
    if (!job.ok()) {
      code = report(context, job.error());
      continue;
    }
    jobs.push_back(std::move(job.value()));
    const v1::Job& done = jobs.back();
    if (done.state() == v1::Job::CANCELLING) {
      context.terminal.err << short_name(done.name())
                           << " saves a checkpoint and stops; see it end: " << context.command << " wait "
                           << short_name(done.name()) << "\n";
    } else if (done.state() != v1::Job::CANCELLED) {
      context.terminal.err << short_name(done.name()) << " had ended before: " << state_text(done.state())
                           << "\n";
    }
  }
  if (!jobs.empty()) print_jobs(context.terminal, context.output, jobs);
  return code;
}

}  // namespace coat::cli
