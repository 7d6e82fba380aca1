#include "tests/support/service/service.h"

#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace coat::testing {
namespace {

constexpr std::size_t kTextBytes = 8192;
constexpr std::size_t kLogTailBytes = 4000;

}  // namespace

std::filesystem::path program(const std::string& name) {
  const char* build = std::getenv("COAT_BINARY_DIR");
  if (build == nullptr)
    throw std::runtime_error("COAT_BINARY_DIR is not set: run the tests with tests/run or ctest");
  return std::filesystem::path(build) / "bin" / name;
}

Service::Service(ControllerTiming timing) : timing_(std::move(timing)) {
  write_file(folder_ / "text.txt", tiny_text(kTextBytes));
}

Service::~Service() {
  workers_.clear();
  controller_.reset();
  // Supervisors and trainers outlive their daemon on purpose; a killed supervisor may just have started one
  // more process.
  while (!kill_processes_of(folder()).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (::testing::Test::HasFailure()) print_logs();
}

void Service::print_logs() const {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           folder(), std::filesystem::directory_options::skip_permission_denied)) {
    const std::string name = entry.path().filename();
    if (!entry.is_regular_file() || (entry.path().extension() != ".log" && name.rfind("log", 0) != 0))
      continue;
    const std::string text = read_file(entry.path());
    const std::size_t from = text.size() > kLogTailBytes ? text.size() - kLogTailBytes : 0;
    std::cerr << "---- " << entry.path().lexically_relative(folder()).string() << "\n"
              << text.substr(from) << "\n";
  }
}

std::map<std::string, std::string> Service::wait_for_endpoints(ChildProcess& process,
                                                               const std::filesystem::path& folder,
                                                               const std::filesystem::path& log) {
  const std::filesystem::path file = folder / "endpoints.json";
  const bool found = eventually([&] { return std::filesystem::exists(file) || !process.running(); });
  if (!found || !process.running()) {
    throw std::runtime_error("no " + file.string() + "; the log:\n" + read_file(log));
  }
  return nlohmann::json::parse(read_file(file)).get<std::map<std::string, std::string>>();
}

void Service::start_controller() {
  controller_.reset();
  std::filesystem::remove(controller_folder() / "endpoints.json");
  const bool again = !endpoints_.empty();
  Command command;
  command.output = folder_ / "controller.log";
  command.arguments = {program("coat-controller"),
                       "--state-dir",
                       controller_folder(),
                       "--listen",
                       again ? endpoints_.at("jobs") : "127.0.0.1:0",
                       "--worker-listen",
                       again ? endpoints_.at("workers") : "127.0.0.1:0",
                       "--metrics-listen",
                       again ? endpoints_.at("metrics") : "127.0.0.1:0",
                       "--heartbeat-interval",
                       timing_.heartbeat_interval,
                       "--lease",
                       timing_.lease,
                       "--fence-after",
                       timing_.fence_after};
  controller_ = std::make_unique<ChildProcess>(command);
  endpoints_ = wait_for_endpoints(*controller_, controller_folder(), command.output);
  client_ = std::make_unique<client::JobClient>(client::ClientOptions{.address = jobs_address()});
}

void Service::start_worker(const WorkerOptions& options) {
  workers_.erase(options.id);
  const std::filesystem::path folder = worker_folder(options.id);
  std::filesystem::remove(folder / "endpoints.json");
  Command command;
  command.output = folder_ / ("worker-" + options.id + ".log");
  command.arguments = {program("coat-worker"),
                       "--state-dir",
                       folder,
                       "--controller",
                       workers_address(),
                       "--id",
                       options.id,
                       "--cpu-devices",
                       "1",
                       "--metrics-listen",
                       "127.0.0.1:0"};
  const auto add = [&command](const std::string& option, const std::string& value) {
    if (!value.empty()) command.arguments.insert(command.arguments.end(), {option, value});
  };
  add("--checkpoint-dir", options.checkpoint_dir);
  add("--memory-limit", options.memory_limit);
  command.arguments.insert(command.arguments.end(), options.more.begin(), options.more.end());
  // A waiting thread of a tiny step sleeps: spinning would starve the other processes of the test.
  command.environment = {{"OMP_WAIT_POLICY", "PASSIVE"}};
  workers_[options.id] = std::make_unique<ChildProcess>(command);
  wait_for_endpoints(*workers_[options.id], folder, command.output);
}

std::string Service::worker_metrics_address(const std::string& id) const {
  return nlohmann::json::parse(read_file(worker_folder(id) / "endpoints.json"))
      .at("metrics")
      .get<std::string>();
}

bool Service::has_checkpoint(const std::filesystem::path& checkpoint_dir, const std::string& job) {
  std::error_code error;  // the folder is made by the trainer
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint_dir / job, error)) {
    const std::string name = entry.path().filename();
    const bool complete = name.rfind("step-", 0) == 0 && name.find('.') == std::string::npos;
    if (complete && std::filesystem::exists(entry.path() / "manifest.json")) return true;
  }
  return false;
}

std::filesystem::path Service::write_job(const TinyJob& job) {
  TinyJob filled = job;
  if (filled.data_path.empty()) filled.data_path = folder_ / "text.txt";
  const std::filesystem::path path = folder_ / ("job-" + std::to_string(++job_files_) + ".yaml");
  write_file(path, to_yaml(filled));
  return path;
}

std::string Service::submit(const TinyJob& job) {
  const Output output = cli({"submit", write_job(job), "-o", "name"});
  EXPECT_EQ(output.exit.code, 0) << output.err;
  return output.exit.code == 0 ? output.out.substr(0, output.out.find('\n')) : "";
}

Output Service::cli(std::vector<std::string> arguments, std::chrono::milliseconds patience) {
  std::vector<std::string> all = {program("coat"), "--server", jobs_address()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_to_end(all, folder(), {{"NO_COLOR", "1"}}, patience);
}

v1::Job Service::job(const std::string& id) {
  const Result<v1::Job> job = client_->get(id);
  return job.ok() ? job.value() : v1::Job();
}

v1::Attempt Service::attempt(const std::string& id, int number) {
  const auto attempts = client_->attempts(id);
  const bool known = attempts.ok() && attempts.value().size() >= static_cast<std::size_t>(number);
  return known ? attempts.value()[static_cast<std::size_t>(number) - 1] : v1::Attempt();
}

std::vector<v1::Worker> Service::workers() {
  const auto workers = client_->workers();
  return workers.ok() ? workers.value() : std::vector<v1::Worker>{};
}

bool Service::reaches(const std::string& id, const std::function<bool(const v1::Job&)>& condition,
                      std::chrono::milliseconds patience) {
  v1::Job last;
  const bool reached = eventually(
      [&] {
        last = job(id);
        return condition(last);
      },
      patience);
  if (!reached) std::cerr << "the job stayed as it is: " << last.DebugString() << "\n";
  return reached;
}

bool Service::reaches(const std::string& id, v1::Job::State state, std::chrono::milliseconds patience) {
  return reaches(
      id, [state](const v1::Job& job) { return job.state() == state; }, patience);
}

bool Service::worker_reaches(const std::string& id, v1::Worker::State state,
                             std::chrono::milliseconds patience) {
  return eventually(
      [&] {
        for (const v1::Worker& worker : workers()) {
          if (worker.name() == "workers/" + id && worker.state() == state) return true;
        }
        return false;
      },
      patience);
}

}  // namespace coat::testing
