// Prometheus series with a life: prometheus-cpp 1.0 has neither removal by label nor a cap, this has both.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace coat {

using MetricLabels = std::map<std::string, std::string>;

// Families by name; series are made on first use. Thread-safe. Beyond `max_series` a new series is not made:
// the call is counted in coat_metrics_dropped_series_total and its value goes nowhere.
class Metrics {
 public:
  // `program` and `version` label coat_build_info.
  explicit Metrics(const std::string& program, const std::string& version, std::size_t max_series = 50000);
  ~Metrics();

  void set_gauge(const std::string& name, const std::string& help, const MetricLabels& labels, double value);
  void add_counter(const std::string& name, const std::string& help, const MetricLabels& labels,
                   double by = 1);
  void observe(const std::string& name, const std::string& help, const MetricLabels& labels, double value,
               const std::vector<double>& buckets);
  // Every series, of any family, that carries label=value. Returns how many.
  std::size_t remove_series(const std::string& label, const std::string& value);
  std::size_t series_count() const;

  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

 private:
  struct Series;
  bool has_room_locked();
  void remove_locked(const std::string& name, const Series& series);

  mutable std::mutex mutex_;
  std::shared_ptr<prometheus::Registry> registry_;
  std::size_t max_series_;
  std::map<std::pair<std::string, MetricLabels>, std::unique_ptr<Series>> series_;
  std::map<std::string, prometheus::Family<prometheus::Gauge>*> gauges_;
  std::map<std::string, prometheus::Family<prometheus::Counter>*> counters_;
  std::map<std::string, prometheus::Family<prometheus::Histogram>*> histograms_;
};

// Serves GET /metrics on `address` ("127.0.0.1:9464"; port 0 picks one) while it lives. Throws
// std::runtime_error that names the address and the option when it cannot listen.
class MetricsServer {
 public:
  MetricsServer(const std::string& address, const Metrics& metrics);
  ~MetricsServer();
  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coat
