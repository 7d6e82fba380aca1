#include "proto/common/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace coat {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.registry()->Collect());
}

TEST(Metrics, KindsOfSeriesAppearByName) {
  Metrics metrics("coat-test", "1.2.3");
  metrics.set_gauge("coat_job_loss", "Loss.", {{"job", "a"}}, 2.5);
  metrics.set_gauge("coat_job_loss", "Loss.", {{"job", "a"}}, 2.25);
  metrics.add_counter("coat_retries_total", "Retries.", {{"reason", "KILLED"}});
  metrics.add_counter("coat_retries_total", "Retries.", {{"reason", "KILLED"}}, 2);
  metrics.observe("coat_store_commit_seconds", "Commit.", {}, 0.02, {0.01, 0.1});
  const std::string text = text_of(metrics);
  EXPECT_THAT(text, HasSubstr("coat_build_info{program=\"coat-test\",version=\"1.2.3\"} 1"));
  EXPECT_THAT(text, HasSubstr("coat_job_loss{job=\"a\"} 2.25"));
  EXPECT_THAT(text, HasSubstr("coat_retries_total{reason=\"KILLED\"} 3"));
  EXPECT_THAT(text, HasSubstr("coat_store_commit_seconds_bucket{le=\"0.01\"} 0"));
  EXPECT_THAT(text, HasSubstr("coat_store_commit_seconds_bucket{le=\"0.1\"} 1"));
}

TEST(Metrics, AJobsSeriesGoAndComeBack) {
  Metrics metrics("p", "v");
  const std::size_t before = metrics.series_count();
  for (const char* job : {"a", "b"}) {
    metrics.set_gauge("coat_job_step", "Step.", {{"job", job}}, 7);
    metrics.add_counter("coat_job_tokens_total", "Tokens.", {{"job", job}}, 8);
    metrics.observe("coat_job_checkpoint_seconds", "Checkpoint.", {{"job", job}}, 1, {1, 2});
  }
  EXPECT_EQ(metrics.series_count(), before + 6);
  EXPECT_EQ(metrics.remove_series("job", "a"), 3U);
  EXPECT_EQ(metrics.series_count(), before + 3);
  EXPECT_THAT(text_of(metrics), Not(HasSubstr("job=\"a\"")));
  EXPECT_THAT(text_of(metrics), HasSubstr("coat_job_step{job=\"b\"} 7"));
  EXPECT_EQ(metrics.remove_series("job", "a"), 0U);
  metrics.add_counter("coat_job_tokens_total", "Tokens.", {{"job", "a"}}, 1);
  EXPECT_THAT(text_of(metrics), HasSubstr("coat_job_tokens_total{job=\"a\"} 1\n"));
}

TEST(Metrics, BeyondTheCapNothingGrowsAndItIsCounted) {
  Metrics metrics("p", "v", 3);
  const std::size_t before = metrics.series_count();
  for (int i = 0; i < 10; ++i) metrics.set_gauge("coat_g", "G.", {{"i", std::to_string(i)}}, i);
  EXPECT_EQ(metrics.series_count(), before + 3);
  EXPECT_THAT(text_of(metrics), HasSubstr("coat_metrics_dropped_series_total 7"));
  // Known series still change, and a removed one makes room.
  metrics.set_gauge("coat_g", "G.", {{"i", "0"}}, 42);
  EXPECT_THAT(text_of(metrics), HasSubstr("coat_g{i=\"0\"} 42"));
  EXPECT_EQ(metrics.remove_series("i", "1"), 1U);
  metrics.set_gauge("coat_g", "G.", {{"i", "9"}}, 9);
  EXPECT_THAT(text_of(metrics), HasSubstr("coat_g{i=\"9\"} 9"));
}

TEST(Metrics, ThreadsMayWriteRemoveAndCollect) {
  Metrics metrics("p", "v");
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&metrics, t] {
      for (int i = 0; i < 500; ++i) {
        metrics.set_gauge("coat_g", "G.", {{"job", std::to_string(i % 7)}, {"t", std::to_string(t)}}, i);
        metrics.remove_series("job", std::to_string(i % 5));
      }
    });
  }
  for (int i = 0; i < 50; ++i) text_of(metrics);
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 7; ++i) metrics.remove_series("job", std::to_string(i));
  EXPECT_THAT(text_of(metrics), Not(HasSubstr("coat_g")));
}

// One request over a real socket.
std::string http_get(int port, const std::string& path) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string response;
  if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(send(descriptor, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::array<char, 4096> buffer{};
    ssize_t count = 0;
    while ((count = recv(descriptor, buffer.data(), buffer.size(), 0)) > 0) {
      response.append(buffer.data(), static_cast<std::size_t>(count));
    }
  }
  close(descriptor);
  return response;
}

TEST(MetricsServer, ServesWhatTheRegistryHolds) {
  Metrics metrics("p", "v");
  const MetricsServer server("127.0.0.1:0", metrics);
  ASSERT_GT(server.port(), 0);
  metrics.set_gauge("coat_job_step", "Step.", {{"job", "x"}}, 3);
  const std::string response = http_get(server.port(), "/metrics");
  EXPECT_THAT(response, HasSubstr("200 OK"));
  EXPECT_THAT(response, HasSubstr("coat_job_step{job=\"x\"} 3"));
  EXPECT_THAT(http_get(server.port(), "/other"), HasSubstr("404"));
}

TEST(MetricsServer, APortInUseNamesAddressAndOption) {
  Metrics metrics("p", "v");
  const MetricsServer server("127.0.0.1:0", metrics);
  const std::string address = "127.0.0.1:" + std::to_string(server.port());
  try {
    const MetricsServer second(address, metrics);
    FAIL() << "two servers listen on " << address;
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--metrics-listen: cannot listen on " + address));
  }
}

TEST(Metrics, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "SKIPPED: promtool is not installed";
  Metrics metrics("p", "v");
  metrics.set_gauge("coat_job_loss", "Loss of the latest step.", {{"job", "a"}}, std::nan(""));
  metrics.set_gauge("coat_job_grad_norm", "Norm.", {{"job", "quote \" slash \\ line \n end"}}, HUGE_VAL);
  metrics.add_counter("coat_retries_total", "Retries.", {{"reason", "KILLED"}}, 3);
  metrics.observe("coat_queue_wait_seconds", "Waiting.", {}, 3, {1, 10});
  FILE* promtool = popen("promtool check metrics", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = text_of(metrics);
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), promtool), text.size());
  EXPECT_EQ(pclose(promtool), 0) << text;
}

}  // namespace
}  // namespace coat
