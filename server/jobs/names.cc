#include "server/jobs/names.h"

#include <array>
#include <charconv>
#include <cstdio>

namespace coat::jobs {
namespace {

constexpr char kJobs[] = "jobs/";
constexpr char kAttempts[] = "/attempts/";
constexpr std::size_t kMaxId = 63;

bool is_label(const std::string& id) {
  if (id.empty() || id.size() > kMaxId || id.front() == '-' || id.back() == '-') return false;
  return id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

}  // namespace

std::optional<std::string> parse_job_name(const std::string& text) {
  const std::string id = text.starts_with(kJobs) ? text.substr(sizeof(kJobs) - 1) : text;
  if (!is_label(id)) return std::nullopt;
  return kJobs + id;
}

std::optional<AttemptName> parse_attempt_name(const std::string& text) {
  const std::size_t border = text.find(kAttempts);
  AttemptName name;
  if (border != std::string::npos) {
    const char* first = text.data() + border + sizeof(kAttempts) - 1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, name.number);
    if (error != std::errc() || end != last || name.number < 1 || *first == '0') return std::nullopt;
  }
  const std::optional<std::string> job = parse_job_name(text.substr(0, border));
  if (!job) return std::nullopt;
  name.job = *job;
  return name;
}

std::string attempt_name(const std::string& job, int number) {
  return job + kAttempts + std::to_string(number);
}

std::string new_job_name(const std::string& spec_name, const std::function<std::uint64_t()>& random) {
  constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string name = kJobs + spec_name + "-";
  std::uint64_t bits = random();
  for (int i = 0; i < 5; ++i) {
    name += kAlphabet[bits % 36];
    bits /= 36;
  }
  return name;
}

std::string new_uid(const std::function<std::uint64_t()>& random) {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(random()),
                static_cast<unsigned long long>(random()));
  return text.data();
}

bool is_worker_id(const std::string& id) { return is_label(id); }

}  // namespace coat::jobs
