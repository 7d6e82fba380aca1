#include "client/cli/output.h"

#include "client/cli/human.h"
#include "client/cli/table.h"
#include "proto/common/byte_size.h"

namespace coat::cli {
namespace {

std::string steps_text(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  const std::int64_t total =
      progress.total_steps() > 0 ? progress.total_steps() : job.spec().training().steps();
  return std::to_string(progress.step()) + "/" + std::to_string(total);
}

std::string age_text(const Terminal& terminal, const google::protobuf::Timestamp& since) {
  if (since.seconds() == 0) return "";
  return duration_text(std::max(0.0, seconds_between(since, to_timestamp(terminal.clock.system_now()))));
}

std::vector<std::string> job_row(const Terminal& terminal, const v1::Job& job, bool wide) {
  const v1::Progress& progress = job.progress();
  const bool trained = progress.step() > 0;
  std::vector<std::string> row = {short_name(job.name()), state_text(job.state()), steps_text(job),
                                  trained ? fixed_text(progress.loss(), 4) : "-"};
  if (wide) {
    row.push_back(job.spec().has_recipe() ? job.spec().recipe() : "coat");
    row.push_back(trained ? count_text(progress.tokens_per_second()) : "-");
    row.push_back(trained ? bytes_text(progress.memory_peak_bytes()) : "-");
    row.push_back(std::to_string(job.attempt_count()));
    row.push_back(std::to_string(job.retries_used()));
  }
  row.push_back(age_text(terminal, job.create_time()));
  row.push_back(note_of(job));
  return row;
}

void print_job_table(const Terminal& terminal, const OutputOptions& options,
                     const std::vector<v1::Job>& jobs) {
  const bool wide = options.format == Format::kWide;
  std::vector<Column> columns = {{"NAME"}, {"STATE"}, {"STEP", true}, {"LOSS", true}};
  if (wide) {
    columns.insert(
        columns.end(),
        {{"RECIPE"}, {"TOKENS/S", true}, {"PEAK MEMORY", true}, {"ATTEMPTS", true}, {"RETRIES", true}});
  }
  columns.insert(columns.end(), {{"AGE", true}, {"NOTE"}});
  Table table(std::move(columns));
  for (const v1::Job& job : jobs) table.add(job_row(terminal, job, wide));
  table.print(terminal.out, options.headers);
}

// "2 x NVIDIA H200 (139 GiB)" for each run of equal devices.
std::string devices_text(const v1::Worker& worker) {
  std::string text;
  for (int i = 0; i < worker.devices_size();) {
    const v1::Device& device = worker.devices(i);
    int same = 1;
    while (i + same < worker.devices_size() && worker.devices(i + same).model() == device.model() &&
           worker.devices(i + same).memory_bytes() == device.memory_bytes()) {
      ++same;
    }
    const std::string kind = device.kind() == v1::Device::CUDA ? "cuda " : "cpu ";
    text += (text.empty() ? "" : ", ") + (same > 1 ? std::to_string(same) + " x " : std::string()) + kind +
            device.model() + " (" + bytes_text(device.memory_bytes()) + ")";
    i += same;
  }
  return text.empty() ? "none" : text;
}

std::string health_text(const v1::Worker& worker) {
  std::string text;
  for (const v1::Device& device : worker.devices()) {
    if (device.health() == v1::Device::OK || device.health() == v1::Device::HEALTH_UNSPECIFIED) continue;
    text += (text.empty() ? "" : "; ") + std::string("device ") + std::to_string(device.index()) + " " +
            v1::Device::Health_Name(device.health()) + " " + device.health_message();
  }
  if (!worker.state_message().empty()) text += (text.empty() ? "" : "; ") + worker.state_message();
  return text;
}

std::string attempts_text(const v1::Worker& worker) {
  std::string text;
  for (const std::string& attempt : worker.attempts())
    text += (text.empty() ? "" : ", ") + short_name(attempt);
  return text.empty() ? "-" : text;
}

void print_worker_table(const Terminal& terminal, const OutputOptions& options,
                        const std::vector<v1::Worker>& workers) {
  const bool wide = options.format == Format::kWide;
  std::vector<Column> columns = {{"NAME"}, {"STATE"}, {"DEVICES"}, {"RUNS"}, {"SEEN", true}};
  if (wide) columns.insert(columns.end(), {{"HOST"}, {"VERSION"}, {"START", true}});
  columns.push_back({"NOTE"});
  Table table(std::move(columns));
  for (const v1::Worker& worker : workers) {
    const std::string state = v1::Worker::State_Name(worker.state());
    const std::string seen = age_text(terminal, worker.heartbeat_time());
    std::vector<std::string> row = {short_name(worker.name()), state.empty() ? "?" : state,
                                    devices_text(worker), attempts_text(worker),
                                    seen.empty() ? "-" : seen + " ago"};
    if (wide) {
      row.insert(row.end(), {worker.hostname(), worker.version(), std::to_string(worker.incarnation())});
    }
    row.push_back(health_text(worker));
    table.add(std::move(row));
  }
  table.print(terminal.out, options.headers);
}

template <typename Message>
void print_names(std::ostream& out, const std::vector<Message>& messages) {
  for (const Message& message : messages) out << short_name(message.name()) << '\n';
}

template <typename Message>
std::vector<const google::protobuf::Message*> pointers(const std::vector<Message>& messages) {
  std::vector<const google::protobuf::Message*> result;
  for (const Message& message : messages) result.push_back(&message);
  return result;
}

}  // namespace

void print_jobs(const Terminal& terminal, const OutputOptions& options, const std::vector<v1::Job>& jobs) {
  switch (options.format) {
    case Format::kTable:
    case Format::kWide:
      return print_job_table(terminal, options, jobs);
    case Format::kName:
      return print_names(terminal.out, jobs);
    case Format::kJson:
    case Format::kYaml:
      return print_messages(terminal.out, options.format, "jobs", pointers(jobs));
  }
}

void print_workers(const Terminal& terminal, const OutputOptions& options,
                   const std::vector<v1::Worker>& workers) {
  switch (options.format) {
    case Format::kTable:
    case Format::kWide:
      return print_worker_table(terminal, options, workers);
    case Format::kName:
      return print_names(terminal.out, workers);
    case Format::kJson:
    case Format::kYaml:
      return print_messages(terminal.out, options.format, "workers", pointers(workers));
  }
}

std::string short_name(const std::string& name) {
  for (const char* prefix : {"jobs/", "workers/"}) {
    if (name.starts_with(prefix)) return name.substr(std::string(prefix).size());
  }
  return name;
}

std::string state_text(v1::Job::State state) {
  const std::string& name = v1::Job::State_Name(state);
  return name.empty() || state == v1::Job::STATE_UNSPECIFIED ? "?" : name;
}

std::string state_text(v1::Attempt::State state) {
  const std::string& name = v1::Attempt::State_Name(state);
  return name.empty() || state == v1::Attempt::STATE_UNSPECIFIED ? "?" : name;
}

std::string note_of(const v1::Job& job) {
  if (job.state() == v1::Job::PENDING && job.has_pending_status()) {
    const std::string& reason = v1::PendingStatus::Reason_Name(job.pending_status().reason());
    const std::string& message = job.pending_status().message();
    return message.empty() ? reason : reason + ": " + message;
  }
  if (job.state() == v1::Job::FAILED) {
    const std::string& reason = v1::ExitStatus::Reason_Name(job.exit().reason());
    return job.exit().message().empty() ? reason : reason + ": " + job.exit().message();
  }
  if (job.cancel_requested() && job.state() == v1::Job::CANCELLING)
    return "waits for its trainer to save and stop";
  return "";
}

}  // namespace coat::cli
