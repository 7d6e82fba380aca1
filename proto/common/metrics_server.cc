#include <stdexcept>

#include <prometheus/exposer.h>

#include "proto/common/metrics.h"

namespace coat {

struct MetricsServer::Impl {
  Impl(const std::string& address, std::shared_ptr<prometheus::Registry> source)
      : registry(std::move(source)), exposer(address, 2) {
    exposer.RegisterCollectable(registry);
  }
  std::shared_ptr<prometheus::Registry> registry;
  prometheus::Exposer exposer;
};

MetricsServer::MetricsServer(const std::string& address, const Metrics& metrics) {
  try {
    impl_ = std::make_unique<Impl>(address, metrics.registry());
  } catch (const std::exception& error) {
    throw std::runtime_error("--metrics-listen: cannot listen on " + address + " (" + error.what() +
                             "); the port may be in use: choose another, or port 0 for a free one");
  }
}

MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return impl_->exposer.GetListeningPorts().front(); }

}  // namespace coat
