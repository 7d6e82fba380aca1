// A daemon in this process, or as a program that can be killed, between a fake controller and fake trainers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/worker/agent/agent_test_support.h"
#include "tests/unit/worker/agent/fake_controller.h"
#include "worker/agent/daemon.h"

namespace coat::agent::testing {

inline const std::string kAttempt = "jobs/a-x7k2p/attempts/1";

class DaemonTest : public ::testing::Test {
 protected:
  ~DaemonTest() override;

  WorkerOptions options() const;
  void start_daemon();
  // The real program on the same state folder.
  void start_program();
  void kill_program();

  // Waits for the first registration after `count` others.
  bool registered(std::size_t count = 0);
  // Assigns, and waits until the trainer has said that it started.
  void run(const std::string& attempt, std::int64_t epoch, std::map<std::string, std::string> labels,
           int device = 0);
  // Waits for the end of the attempt, and for every byte that it announced.
  v1::AttemptReport end(const std::string& attempt, std::int64_t epoch);

  std::filesystem::path pids() const { return scratch_ / "pids"; }
  std::filesystem::path folder(const std::string& name) const {
    return scratch_ / "state" / "attempts" / name;
  }
  std::string scrape() const;

  ScratchFolder scratch_;
  FakeController controller_;
  std::unique_ptr<Daemon> daemon_;
  pid_t program_ = 0;
};

}  // namespace coat::agent::testing
