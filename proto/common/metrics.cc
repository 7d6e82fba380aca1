#include "proto/common/metrics.h"

#include <variant>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

namespace coat {

struct Metrics::Series {
  std::variant<prometheus::Gauge*, prometheus::Counter*, prometheus::Histogram*> metric;
};

Metrics::~Metrics() = default;

namespace {

constexpr const char* kDroppedName = "coat_metrics_dropped_series_total";
constexpr const char* kDroppedHelp = "Values that went nowhere because the cap on series was reached.";

}  // namespace

Metrics::Metrics(const std::string& program, const std::string& version, std::size_t max_series)
    : registry_(std::make_shared<prometheus::Registry>()), max_series_(max_series) {
  set_gauge("coat_build_info", "What runs here: always 1.", {{"program", program}, {"version", version}}, 1);
  add_counter(kDroppedName, kDroppedHelp, {}, 0);
}

bool Metrics::has_room_locked() {
  // The two series of the constructor do not count against the cap.
  constexpr std::size_t kOwnSeries = 2;
  if (series_.size() < max_series_ + kOwnSeries) return true;
  const auto dropped = series_.find({kDroppedName, {}});
  std::get<prometheus::Counter*>(dropped->second->metric)->Increment();
  return false;
}

void Metrics::set_gauge(const std::string& name, const std::string& help, const MetricLabels& labels,
                        double value) {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto found = series_.find({name, labels});
  if (found == series_.end()) {
    if (!has_room_locked()) return;
    auto& family = gauges_[name];
    if (family == nullptr) family = &prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
    auto series = std::make_unique<Series>(Series{&family->Add(labels)});
    found = series_.emplace(std::make_pair(name, labels), std::move(series)).first;
  }
  std::get<prometheus::Gauge*>(found->second->metric)->Set(value);
}

void Metrics::add_counter(const std::string& name, const std::string& help, const MetricLabels& labels,
                          double by) {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto found = series_.find({name, labels});
  if (found == series_.end()) {
    if (!has_room_locked()) return;
    auto& family = counters_[name];
    if (family == nullptr) family = &prometheus::BuildCounter().Name(name).Help(help).Register(*registry_);
    auto series = std::make_unique<Series>(Series{&family->Add(labels)});
    found = series_.emplace(std::make_pair(name, labels), std::move(series)).first;
  }
  std::get<prometheus::Counter*>(found->second->metric)->Increment(by);
}

void Metrics::observe(const std::string& name, const std::string& help, const MetricLabels& labels,
                      double value, const std::vector<double>& buckets) {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto found = series_.find({name, labels});
  if (found == series_.end()) {
    if (!has_room_locked()) return;
    auto& family = histograms_[name];
    if (family == nullptr) family = &prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_);
    auto series = std::make_unique<Series>(Series{&family->Add(labels, buckets)});
    found = series_.emplace(std::make_pair(name, labels), std::move(series)).first;
  }
  std::get<prometheus::Histogram*>(found->second->metric)->Observe(value);
}

void Metrics::remove_locked(const std::string& name, const Series& series) {
  if (const auto* gauge = std::get_if<prometheus::Gauge*>(&series.metric)) gauges_[name]->Remove(*gauge);
  if (const auto* counter = std::get_if<prometheus::Counter*>(&series.metric))
    counters_[name]->Remove(*counter);
  if (const auto* histogram = std::get_if<prometheus::Histogram*>(&series.metric))
    histograms_[name]->Remove(*histogram);
}

std::size_t Metrics::remove_series(const std::string& label, const std::string& value) {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::size_t removed = 0;
  for (auto it = series_.begin(); it != series_.end();) {
    const MetricLabels& labels = it->first.second;
    const auto found = labels.find(label);
    if (found == labels.end() || found->second != value) {
      ++it;
      continue;
    }
    remove_locked(it->first.first, *it->second);
    it = series_.erase(it);
    ++removed;
  }
  return removed;
}

std::size_t Metrics::series_count() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return series_.size();
}

}  // namespace coat
