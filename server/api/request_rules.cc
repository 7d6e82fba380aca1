#include "server/api/request_rules.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "server/jobs/names.h"

namespace coat::api {
namespace {

constexpr std::size_t kMaxRequestId = 64;
constexpr int kDefaultPage = 50;
constexpr int kLargestPage = 1000;
constexpr int kMaxFilterLabels = 64;
constexpr std::size_t kMaxFilterText = 256;

ServiceError wrong(const std::string& field, const std::string& message, const std::string& fix) {
  return invalid_argument({{field, message, fix}});
}

// FNV-1a over the filters, so that a token cannot go on with another list.
std::uint64_t filter_hash(const v1::ListJobsRequest& request) {
  std::string text = request.name_prefix();
  std::vector<int> states(request.states().begin(), request.states().end());
  std::sort(states.begin(), states.end());
  states.erase(std::unique(states.begin(), states.end()), states.end());
  for (const int state : states) text += "\n" + std::to_string(state);
  const std::map<std::string, std::string> labels(request.labels().begin(), request.labels().end());
  for (const auto& [key, value] : labels) text += "\n" + key + "=" + value;
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

std::optional<ServiceError> check_filters(const v1::ListJobsRequest& request) {
  if (request.page_size() < 0) {
    return wrong("page_size", std::to_string(request.page_size()) + " is negative",
                 "use 0 for the default, or 1 to 1000");
  }
  for (const int state : request.states()) {
    if (!v1::Job::State_IsValid(state) || state == v1::Job::STATE_UNSPECIFIED) {
      return wrong("states", std::to_string(state) + " is no state of a job",
                   "use PENDING, RUNNING, CANCELLING, SUCCEEDED, FAILED or CANCELLED");
    }
  }
  if (request.labels_size() > kMaxFilterLabels) {
    return wrong("labels", std::to_string(request.labels_size()) + " labels are too many",
                 "ask for at most 64");
  }
  for (const auto& [key, value] : request.labels()) {
    if (key.empty() || key.size() > kMaxFilterText || value.size() > kMaxFilterText) {
      return wrong("labels", "a key or value is empty or longer than 256 bytes",
                   "use the label as the job has it");
    }
  }
  if (request.name_prefix().size() > kMaxFilterText) {
    return wrong("name_prefix", "it is longer than 256 bytes", "names have at most 40 characters");
  }
  return std::nullopt;
}

}  // namespace

std::optional<ServiceError> check_request_id(const std::string& request_id) {
  if (request_id.size() <= kMaxRequestId) return std::nullopt;
  return wrong("request_id", "it has " + std::to_string(request_id.size()) + " characters",
               "use 1 to 64, for example a UUID");
}

Result<std::string> check_job_name(const std::string& field, const std::string& name) {
  const std::optional<std::string> parsed = jobs::parse_job_name(name);
  if (parsed) return *parsed;
  return wrong(field,
               name.empty() ? "it is empty" : "\"" + name.substr(0, kMaxFilterText) + "\" is no job's name",
               "use the name that submit answered, as in \"jobs/quickstart-x7k2p\"");
}

std::optional<ServiceError> check_not_negative(const std::string& field, std::int64_t value) {
  if (value >= 0) return std::nullopt;
  return wrong(field, std::to_string(value) + " is negative", "use 0 for the beginning");
}

Result<store::JobQuery> check_list(const v1::ListJobsRequest& request) {
  if (auto error = check_filters(request)) return *error;
  store::JobQuery query;
  query.limit = request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kLargestPage);
  for (const int state : request.states()) query.states.push_back(static_cast<v1::Job::State>(state));
  query.name_prefix = request.name_prefix();
  query.labels.insert(request.labels().begin(), request.labels().end());
  if (request.page_token().empty()) return query;

  const std::string& token = request.page_token();
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), query.before_order);
  if (error != std::errc() || query.before_order <= 0 || page_token(request, query.before_order) != token) {
    return wrong("page_token", "it does not belong to this list",
                 "use next_page_token of the former page with the same filters, or none");
  }
  return query;
}

std::string page_token(const v1::ListJobsRequest& request, std::int64_t before_order) {
  if (before_order == 0) return {};
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(filter_hash(request)));
  return std::to_string(before_order) + "-" + hash;
}

}  // namespace coat::api
