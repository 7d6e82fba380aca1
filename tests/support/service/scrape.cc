#include "tests/support/service/scrape.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace coat::testing {
namespace {

int connect_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0) return fd;
  ::close(fd);
  return -1;
}

std::string percent_encoded(const std::string& text) {
  std::string result;
  for (const char c : text) {
    char escaped[4];
    std::snprintf(escaped, sizeof escaped, "%%%02X", static_cast<unsigned char>(c));
    result += std::isalnum(static_cast<unsigned char>(c)) != 0 ? std::string(1, c) : std::string(escaped);
  }
  return result;
}

// Reads name="value" pairs up to the closing brace; `at` is left behind it.
std::map<std::string, std::string> parse_labels(const std::string& line, std::size_t& at) {
  std::map<std::string, std::string> labels;
  while (at < line.size() && line[at] != '}') {
    const std::size_t equals = line.find("=\"", at);
    if (equals == std::string::npos) throw std::runtime_error("bad labels: " + line);
    const std::string name = line.substr(at, equals - at);
    std::string value;
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] == '\\') ++at;
      value += line[at];
    }
    labels[name] = value;
    ++at;
    if (at < line.size() && line[at] == ',') ++at;
  }
  ++at;
  return labels;
}

}  // namespace

HttpResponse http_get(const std::string& address, const std::string& target) {
  const int fd = connect_to(address);
  if (fd < 0) return {};
  // HTTP/1.0: no chunks, and the server closes at the end.
  const std::string request =
      "GET " + target + " HTTP/1.0\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char buffer[16384];
    ssize_t count = 0;
    while ((count = ::recv(fd, buffer, sizeof buffer, 0)) > 0)
      answer.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(fd);
  const std::size_t space = answer.find(' ');
  const std::size_t body = answer.find("\r\n\r\n");
  if (space == std::string::npos || body == std::string::npos) return {};
  return {std::atoi(answer.c_str() + space + 1), answer.substr(body + 4)};
}

int free_port() {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof any;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&any), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&any), &size) == 0;
  ::close(fd);
  if (!bound) throw std::runtime_error("no free port on loopback");
  return ntohs(any.sin_port);
}

std::vector<Sample> parse_exposition(const std::string& text) {
  std::vector<Sample> samples;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::size_t at = line.find_first_of("{ ");
    if (at == std::string::npos) throw std::runtime_error("not a sample: " + line);
    Sample sample;
    sample.name = line.substr(0, at);
    if (line[at] == '{') sample.labels = parse_labels(line, ++at);
    char* end = nullptr;
    sample.value = std::strtod(line.c_str() + at, &end);
    if (end == line.c_str() + at) throw std::runtime_error("no value: " + line);
    samples.push_back(sample);
  }
  return samples;
}

std::optional<double> find_sample(const std::vector<Sample>& samples, const std::string& name,
                                  const std::map<std::string, std::string>& labels) {
  for (const Sample& sample : samples) {
    bool matches = sample.name == name;
    for (const auto& [label, value] : labels) {
      const auto found = sample.labels.find(label);
      matches = matches && found != sample.labels.end() && found->second == value;
    }
    if (matches) return sample.value;
  }
  return std::nullopt;
}

std::vector<Sample> scrape(const std::string& address) {
  const HttpResponse response = http_get(address, "/metrics");
  return response.status == 200 ? parse_exposition(response.body) : std::vector<Sample>{};
}

std::vector<Series> query_prometheus(const std::string& address, const std::string& selector) {
  const HttpResponse response = http_get(address, "/api/v1/query?query=" + percent_encoded(selector));
  const auto answer = nlohmann::json::parse(response.body, nullptr, false);
  if (answer.is_discarded() || answer.value("status", "") != "success") return {};
  std::vector<Series> result;
  for (const auto& entry : answer.at("data").at("result")) {
    Series series;
    series.labels = entry.at("metric").get<std::map<std::string, std::string>>();
    const auto points =
        entry.contains("values") ? entry.at("values") : nlohmann::json::array({entry.at("value")});
    for (const auto& point : points) {
      series.points.emplace_back(point.at(0).get<double>(), std::stod(point.at(1).get<std::string>()));
    }
    result.push_back(series);
  }
  return result;
}

}  // namespace coat::testing
