// The controller as a whole: state folder, store, controller, both services and metrics, wired and drained.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/app/options.h"

namespace coat::app {

class Service {
 public:
  // Serves from now on, and writes <state-dir>/endpoints.json. Throws std::runtime_error for a person.
  // `on_failure` is told when the store fails: the process must end then. It may run on any thread.
  Service(const ControllerOptions& options, std::function<void()> on_failure);
  // Not serving any more first, then the streams end with UNAVAILABLE, then the rest; within ten seconds.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  const std::string& jobs_address() const;
  const std::string& workers_address() const;
  const std::string& metrics_address() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace coat::app
