// What a metrics endpoint or a Prometheus says, read over plain HTTP on loopback.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace coat::testing {

struct HttpResponse {
  int status = 0;  // 0: no answer
  std::string body;
};
// `address` is "127.0.0.1:9090"; `target` the path with its query.
HttpResponse http_get(const std::string& address, const std::string& target);

// A port of loopback that was free a moment ago.
int free_port();

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};
// The samples of a text exposition; a line that is neither comment nor sample is a std::runtime_error.
std::vector<Sample> parse_exposition(const std::string& text);
// The value of the one sample with this name whose labels include `labels`.
std::optional<double> find_sample(const std::vector<Sample>& samples, const std::string& name,
                                  const std::map<std::string, std::string>& labels = {});

std::vector<Sample> scrape(const std::string& address);  // of /metrics; empty when there is no answer

// All raw points (unix seconds, value) of a series selector such as `coat_job_loss{job="x"}[1h]`, by
// Prometheus's HTTP API, one entry a series. Empty when it has none.
struct Series {
  std::map<std::string, std::string> labels;
  std::vector<std::pair<double, double>> points;
};
std::vector<Series> query_prometheus(const std::string& address, const std::string& selector);

}  // namespace coat::testing
