#include "worker/agent/attempt_record.h"

#include <stdexcept>

#include <nlohmann/json.hpp>

namespace coat::agent {
namespace {

using nlohmann::json;

json write(const ProcessIdentity& identity) {
  return {{"pid", identity.pid}, {"start_time", identity.start_time}};
}

ProcessIdentity read_identity(const json& object) {
  return {object.at("pid").get<pid_t>(), object.at("start_time").get<unsigned long long>()};
}

json write(const StopRequest& request) {
  return {{"grace_seconds", request.grace_seconds},
          {"user_cancel", request.user_cancel},
          {"fence", request.fence},
          {"reason", request.reason}};
}

StopRequest read_stop(const json& object) {
  StopRequest request;
  object.at("grace_seconds").get_to(request.grace_seconds);
  object.at("user_cancel").get_to(request.user_cancel);
  object.at("fence").get_to(request.fence);
  object.at("reason").get_to(request.reason);
  return request;
}

template <typename Read>
auto parse(const char* what, const std::string& text, Read read) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& error) {
    throw std::runtime_error(std::string(what) + " is damaged: " + error.what());
  }
}

}  // namespace

std::string to_json(const AttemptRecord& record) {
  return json{{"version", 1},
              {"attempt", record.attempt},
              {"epoch", record.epoch},
              {"devices", record.devices},
              {"trainer", record.trainer},
              {"stop_grace_seconds", record.stop_grace_seconds},
              {"orphan_grace_seconds", record.orphan_grace_seconds},
              {"daemon_lock", record.daemon_lock}}
             .dump(2) +
         "\n";
}

AttemptRecord parse_attempt_record(const std::string& text) {
  return parse("attempt.json", text, [](const json& object) {
    AttemptRecord record;
    object.at("attempt").get_to(record.attempt);
    object.at("epoch").get_to(record.epoch);
    object.at("devices").get_to(record.devices);
    object.at("trainer").get_to(record.trainer);
    object.at("stop_grace_seconds").get_to(record.stop_grace_seconds);
    object.at("orphan_grace_seconds").get_to(record.orphan_grace_seconds);
    object.at("daemon_lock").get_to(record.daemon_lock);
    return record;
  });
}

std::string to_json(const StopRequest& request) { return write(request).dump(2) + "\n"; }

StopRequest parse_stop_request(const std::string& text) { return parse("stop.json", text, read_stop); }

std::string to_json(const SupervisorRecord& record) {
  return json{{"supervisor", write(record.supervisor)},
              {"trainer", write(record.trainer)},
              {"boot", record.boot},
              {"cgroup", record.cgroup}}
             .dump(2) +
         "\n";
}

SupervisorRecord parse_supervisor_record(const std::string& text) {
  return parse("supervisor.json", text, [](const json& object) {
    return SupervisorRecord{read_identity(object.at("supervisor")), read_identity(object.at("trainer")),
                            object.at("boot").get<std::string>(), object.at("cgroup").get<std::string>()};
  });
}

std::string to_json(const ExitRecord& record) {
  json survivors = json::array();
  for (const ProcessIdentity& identity : record.survivors) survivors.push_back(write(identity));
  return json{{"exit_code", record.exit_code},
              {"signal", record.signal},
              {"killed_by_service", record.killed_by_service},
              {"stop", record.stop ? write(*record.stop) : json(nullptr)},
              {"launch_error", record.launch_error},
              {"supervisor_error", record.supervisor_error},
              {"survivors", survivors},
              {"end_time", record.end_time}}
             .dump(2, ' ', false, json::error_handler_t::replace) +
         "\n";
}

ExitRecord parse_exit_record(const std::string& text) {
  return parse("exit.json", text, [](const json& object) {
    ExitRecord record;
    object.at("exit_code").get_to(record.exit_code);
    object.at("signal").get_to(record.signal);
    object.at("killed_by_service").get_to(record.killed_by_service);
    if (!object.at("stop").is_null()) record.stop = read_stop(object.at("stop"));
    object.at("launch_error").get_to(record.launch_error);
    object.at("supervisor_error").get_to(record.supervisor_error);
    for (const json& survivor : object.at("survivors")) record.survivors.push_back(read_identity(survivor));
    object.at("end_time").get_to(record.end_time);
    return record;
  });
}

std::optional<AttemptName> parse_attempt_name(const std::string& attempt) {
  constexpr std::string_view kJobs = "jobs/";
  constexpr std::string_view kAttempts = "/attempts/";
  if (attempt.rfind(kJobs, 0) != 0) return std::nullopt;
  const std::size_t middle = attempt.find(kAttempts, kJobs.size());
  if (middle == std::string::npos) return std::nullopt;
  AttemptName name;
  name.job = attempt.substr(kJobs.size(), middle - kJobs.size());
  const std::string digits = attempt.substr(middle + kAttempts.size());
  // The job becomes the name of a folder: what could climb out of it is no job.
  if (name.job.empty() ||
      name.job.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos ||
      digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  name.number = std::stoi(digits);
  return name;
}

std::string attempt_folder_name(const AttemptName& name, std::int64_t epoch) {
  return name.job + "." + std::to_string(name.number) + "." + std::to_string(epoch);
}

}  // namespace coat::agent
