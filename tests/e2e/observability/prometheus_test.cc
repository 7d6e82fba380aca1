// A real Prometheus scrapes the controller and a worker while a job trains; what it stored is what the job's
// own metrics file says.
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/service/scrape.h"
#include "tests/support/service/service.h"

namespace coat::testing {
namespace {

// A port that was free a moment ago: Prometheus 2.42 does not tell which one it picked for port 0.
std::string start_prometheus(const std::filesystem::path& folder, const std::vector<std::string>& targets,
                             std::unique_ptr<ChildProcess>& process) {
  std::string list;
  for (const std::string& target : targets) list += (list.empty() ? "'" : ", '") + target + "'";
  write_file(folder / "prometheus.yml",
             "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
             "scrape_configs:\n"
             "  - job_name: coat\n"
             "    honor_labels: true\n"
             "    static_configs: [{targets: [" +
                 list + "]}]\n");
  for (int tries = 0; tries < 20; ++tries) {
    const std::string address = "127.0.0.1:" + std::to_string(free_port());
    Command command;
    command.arguments = {"prometheus", "--config.file=" + (folder / "prometheus.yml").string(),
                         "--storage.tsdb.path=" + (folder / "prometheus-data").string(),
                         "--web.listen-address=" + address, "--log.level=warn"};
    command.output = folder / "prometheus.log";
    process = std::make_unique<ChildProcess>(command);
    const bool up =
        eventually([&] { return http_get(address, "/-/ready").status == 200 || !process->running(); });
    if (up && process->running()) return address;
  }
  return "";
}

class PrometheusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v prometheus >/dev/null") != 0)
      GTEST_SKIP() << "SKIPPED: prometheus is not installed";
    service_.start_controller();
    service_.start_worker({});
    ASSERT_TRUE(service_.worker_reaches("w1", v1::Worker::READY));
  }

  Service service_;
  std::unique_ptr<ChildProcess> prometheus_;
};

std::map<std::int64_t, v1::MetricSample> samples_of(Service& service, const std::string& id) {
  std::map<std::int64_t, v1::MetricSample> samples;
  service.client().stream_metrics("jobs/" + id + "/attempts/1", 0, true, {},
                                  [&](const v1::MetricSample& sample) {
                                    samples[sample.step()] = sample;
                                    return true;
                                  });
  return samples;
}

TEST_F(PrometheusTest, StoredValuesAreThoseOfTheMetricsFile) {
  const std::string address = start_prometheus(
      service_.folder(), {service_.metrics_address(), service_.worker_metrics_address("w1")}, prometheus_);
  ASSERT_FALSE(address.empty()) << read_file(service_.folder() / "prometheus.log");
  const std::string id = service_.submit({.name = "scraped", .steps = 600});
  const std::string selector = "{job=\"" + id + "\"}[1h]";
  // Held still until it has been scraped while it runs, however fast the machine is.
  ASSERT_TRUE(service_.reaches(id, [](const v1::Job& job) { return job.progress().step() > 0; }));
  const std::vector<pid_t> trainers = service_.trainers("w1");
  ASSERT_EQ(trainers.size(), 1U);
  ::kill(trainers[0], SIGSTOP);
  ASSERT_TRUE(eventually([&] {
    const auto held = query_prometheus(address, "coat_job_step" + selector);
    return held.size() == 1 && held[0].points.size() >= 3;
  }));
  ::kill(trainers[0], SIGCONT);
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED, std::chrono::seconds(180)));
  const auto samples = samples_of(service_, id);
  ASSERT_EQ(samples.size(), 600U);

  // By scrape time: all series of one scrape carry the same time stamp.
  const auto steps = query_prometheus(address, "coat_job_step" + selector);
  ASSERT_EQ(steps.size(), 1U);
  std::map<double, std::int64_t> step_at;
  for (const auto& [time, value] : steps[0].points) step_at[time] = static_cast<std::int64_t>(value);
  EXPECT_GE(step_at.size(), 3U);

  const std::map<std::string, double (*)(const v1::MetricSample&)> figures = {
      {"coat_job_loss", [](const v1::MetricSample& sample) { return sample.loss(); }},
      {"coat_job_grad_norm", [](const v1::MetricSample& sample) { return sample.grad_norm(); }},
      {"coat_job_learning_rate", [](const v1::MetricSample& sample) { return sample.learning_rate(); }},
      {"coat_job_tokens_total",
       [](const v1::MetricSample& sample) { return static_cast<double>(sample.tokens()); }},
  };
  for (const auto& [name, figure] : figures) {
    const auto series = query_prometheus(address, name + selector);
    ASSERT_EQ(series.size(), 1U) << name;
    int compared = 0;
    for (const auto& [time, value] : series[0].points) {
      const auto step = step_at.find(time);
      if (step == step_at.end() || step->second == 0) continue;
      const double expected = figure(samples.at(step->second));
      EXPECT_NEAR(value, expected, 1e-9 + 1e-6 * std::abs(expected)) << name << " at step " << step->second;
      ++compared;
    }
    EXPECT_GE(compared, 3) << name;
  }
  const auto errors = query_prometheus(address, "coat_job_quant_relative_error_ratio" + selector);
  EXPECT_GE(errors.size(), 3U);  // activation, gradient, moments
  for (const Series& series : errors) {
    EXPECT_TRUE(series.labels.contains("tensor_class"));
    EXPECT_TRUE(series.labels.contains("format"));
  }
  const auto up = query_prometheus(address, "up");
  ASSERT_EQ(up.size(), 2U);
  for (const Series& series : up) EXPECT_EQ(series.points.at(0).second, 1.0);
}

TEST_F(PrometheusTest, ServiceSeriesTellWorkersJobsAndCalls) {
  const std::string id = service_.submit({.steps = 5});
  ASSERT_TRUE(service_.reaches(id, v1::Job::SUCCEEDED));
  ASSERT_TRUE(eventually([&] {
    return find_sample(scrape(service_.metrics_address()), "coat_jobs", {{"state", "succeeded"}})
               .value_or(0) == 1;
  })) << http_get(service_.metrics_address(), "/metrics").body;
  const std::vector<Sample> controller = scrape(service_.metrics_address());
  EXPECT_EQ(find_sample(controller, "coat_workers", {{"state", "ready"}}), 1);
  EXPECT_TRUE(find_sample(controller, "coat_build_info").has_value());
  EXPECT_EQ(find_sample(controller, "coat_attempts_total", {{"reason", "done"}}), 1);
  EXPECT_GE(find_sample(controller, "coat_grpc_server_handled_total",
                        {{"method", "JobService/SubmitJob"}, {"code", "OK"}})
                .value_or(0),
            1);
  EXPECT_TRUE(find_sample(controller, "coat_worker_last_heartbeat_timestamp_seconds", {{"worker", "w1"}})
                  .has_value());
  EXPECT_GE(find_sample(controller, "coat_store_commit_seconds_count").value_or(0), 1);
  EXPECT_TRUE(find_sample(scrape(service_.worker_metrics_address("w1")), "coat_build_info").has_value());
}

TEST_F(PrometheusTest, BothExpositionsPassPromtool) {
  const std::string id = service_.submit({.steps = 100000});
  ASSERT_TRUE(eventually([&] {
    return find_sample(scrape(service_.worker_metrics_address("w1")), "coat_job_step", {{"job", id}})
        .has_value();
  }));
  for (const std::string& address : {service_.metrics_address(), service_.worker_metrics_address("w1")}) {
    write_file(service_.folder() / "exposition.txt", http_get(address, "/metrics").body);
    const Output checked = run_to_end(
        {"sh", "-c", "promtool check metrics < '" + (service_.folder() / "exposition.txt").string() + "'"},
        service_.folder());
    EXPECT_EQ(checked.exit.code, 0) << checked.out << checked.err;
  }
  ASSERT_TRUE(service_.client().cancel(id).ok());
  EXPECT_TRUE(service_.reaches(id, v1::Job::CANCELLED));
}

}  // namespace
}  // namespace coat::testing
