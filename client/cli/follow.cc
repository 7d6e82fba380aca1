// Commands that stay with a job: watch, wait and logs.
#include "client/cli/commands.h"
#include "client/cli/progress_view.h"
#include "proto/common/message_json.h"

namespace coat::cli {
namespace {

using std::chrono::steady_clock;

void tell_interrupted(Context& context, const std::string& job) {
  context.terminal.err << "\nthe job goes on. See it again: " << context.command << " watch "
                       << short_name(job) << "; end it: " << context.command << " cancel " << short_name(job)
                       << "\n";
}

ExitCode report_stream(Context& context, const ServiceError& error, const std::string& job) {
  if (error.reason == client::kStopped) tell_interrupted(context, job);
  return report(context, error);
}

std::optional<steady_clock::time_point> deadline_of(const WaitArguments& arguments) {
  if (!arguments.timeout) return std::nullopt;
  return steady_clock::now() + *arguments.timeout;
}

std::string interruption_text(const ServiceError& error) {
  return "connection lost (" + error.message + "); trying again";
}

client::StreamOptions stream_options(Context& context, std::optional<steady_clock::time_point> deadline) {
  client::StreamOptions options;
  options.stop = context.terminal.stop;
  options.deadline = deadline;
  options.on_interruption = [&context](const ServiceError& error, int failed) {
    if (failed == 1) context.terminal.err << interruption_text(error) << "\n";
  };
  return options;
}

// What a person wants to hear of an event; empty for what the state line tells anyway.
std::string event_text(const v1::Event& event) {
  const bool of_attempt = event.object().find("/attempts/") != std::string::npos;
  if (!of_attempt || event.to_state() == event.from_state()) return "";
  const std::string number = event.object().substr(event.object().rfind('/') + 1);
  const std::string what = event.to_state().empty() ? event.verb() : event.to_state();
  return "attempt " + number + " " + what + (event.message().empty() ? "" : ": " + event.message());
}

// Each change as one line of JSON.
ExitCode watch_json(Context& context, const v1::Job& job, std::optional<steady_clock::time_point> deadline) {
  v1::WatchJobsResponse now;
  *now.mutable_job() = job;
  v1::Job last = job;
  const auto print = [&](const v1::WatchJobsResponse& response) {
    if (response.has_job()) last = response.job();
    context.terminal.out << message_to_json(response, false) << std::endl;
    return true;
  };
  print(now);
  if (!client::is_terminal(job.state())) {
    const auto error =
        context.client.watch(job.name(), job.last_sequence(), stream_options(context, deadline), print);
    if (error) return report_stream(context, *error, job.name());
  }
  return outcome_code(last);
}

// Waits until the job has an attempt after `known` or has ended.
std::optional<ServiceError> wait_for_attempt(Context& context, v1::Job& job, int known) {
  const auto settled = [&] { return job.attempt_count() > known || client::is_terminal(job.state()); };
  if (settled()) return std::nullopt;
  return context.client.watch(job.name(), job.last_sequence(), stream_options(context, std::nullopt),
                              [&](const v1::WatchJobsResponse& response) {
                                job = response.job();
                                return !settled();
                              });
}

}  // namespace

ExitCode follow(Context& context, std::ostream& out, bool is_tty, v1::Job job,
                std::optional<steady_clock::time_point> deadline) {
  ProgressView view(context.terminal, out, is_tty);
  view.show(job);
  if (!client::is_terminal(job.state())) {
    client::StreamOptions options = stream_options(context, deadline);
    options.on_interruption = [&view](const ServiceError& error, int failed) {
      if (failed == 1) view.say(interruption_text(error));
    };
    const auto error = context.client.watch(job.name(), job.last_sequence(), options,
                                            [&](const v1::WatchJobsResponse& response) {
                                              job = response.job();
                                              const std::string text = event_text(response.event());
                                              if (!text.empty()) view.say(text);
                                              view.show(job);
                                              return true;
                                            });
    view.finish();
    if (error) return report_stream(context, *error, job.name());
  }
  view.finish();
  out << outcome_text(context.terminal, job);
  const std::string name = short_name(job.name());
  if (job.state() == v1::Job::FAILED && job.attempt_count() > 0) {
    context.terminal.err << "its log: " << context.command << " logs " << name << "\n";
  } else if (job.state() == v1::Job::SUCCEEDED) {
    context.terminal.err << "all about it: " << context.command << " describe " << name << "\n";
  }
  return outcome_code(job);
}

ExitCode watch(Context& context, const WaitArguments& arguments) {
  auto job = context.client.get(arguments.job);
  if (!job.ok()) return report(context, job.error());
  if (context.output.format == Format::kJson) return watch_json(context, job.value(), deadline_of(arguments));
  return follow(context, context.terminal.out, context.terminal.out_is_tty, job.value(),
                deadline_of(arguments));
}

ExitCode wait(Context& context, const WaitArguments& arguments) {
  const auto job = context.client.wait(arguments.job, stream_options(context, deadline_of(arguments)));
  if (!job.ok()) return report_stream(context, job.error(), arguments.job);
  switch (context.output.format) {
    case Format::kJson:
    case Format::kYaml:
      print_message(context.terminal.out, context.output.format, job.value());
      break;
    case Format::kName:
      context.terminal.out << short_name(job.value().name()) << '\n';
      break;
    default:
      context.terminal.out << outcome_text(context.terminal, job.value());
  }
  return outcome_code(job.value());
}

ExitCode logs(Context& context, const LogsArguments& arguments) {
  auto found = context.client.get(arguments.job);
  if (!found.ok()) return report(context, found.error());
  v1::Job job = std::move(found.value());
  int attempt = arguments.attempt > 0 ? arguments.attempt : job.attempt_count();
  std::int64_t offset = arguments.offset;
  while (true) {
    if (attempt == 0) {
      if (!arguments.follow || client::is_terminal(job.state())) {
        context.terminal.err << short_name(job.name()) << " has no attempt, so there is no log. "
                             << state_text(job.state()) << " " << note_of(job) << "\n";
        return ExitCode::kOk;
      }
    } else {
      const auto end = context.client.stream_logs(
          job.name() + "/attempts/" + std::to_string(attempt), offset, arguments.follow,
          stream_options(context, std::nullopt), [&](const std::string& data) {
            context.terminal.out.write(data.data(), static_cast<std::streamsize>(data.size())).flush();
            return true;
          });
      if (!end.ok()) return report_stream(context, end.error(), job.name());
      if (!arguments.follow || arguments.attempt > 0) return ExitCode::kOk;
    }
    // The next attempt's log follows, if there will be one.
    auto current = context.client.get(job.name());
    if (!current.ok()) return report(context, current.error());
    job = std::move(current.value());
    if (const auto error = wait_for_attempt(context, job, attempt))
      return report_stream(context, *error, job.name());
    if (job.attempt_count() <= attempt) {
      if (attempt == 0) continue;
      return ExitCode::kOk;
    }
    if (attempt > 0) context.terminal.err << "-- attempt " << attempt + 1 << "\n";
    ++attempt;
    offset = 0;
  }
}

}  // namespace coat::cli
