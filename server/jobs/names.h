// Resource names: "jobs/J", "jobs/J/attempts/N", "workers/W".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace coat::jobs {

struct AttemptName {
  std::string job;  // "jobs/J"
  int number = 0;   // 0: the latest
};

// "jobs/J" of "jobs/J" or "J"; nothing where it cannot be a job's name.
std::optional<std::string> parse_job_name(const std::string& text);
// Of "jobs/J/attempts/N", "J/attempts/N", "jobs/J" or "J".
std::optional<AttemptName> parse_attempt_name(const std::string& text);
std::string attempt_name(const std::string& job, int number);
// "jobs/<spec_name>-<5 of [a-z0-9]>"; `random` gives 64 random bits.
std::string new_job_name(const std::string& spec_name, const std::function<std::uint64_t()>& random);
// 32 hexadecimal digits.
std::string new_uid(const std::function<std::uint64_t()>& random);

// [a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?
bool is_worker_id(const std::string& id);

}  // namespace coat::jobs
