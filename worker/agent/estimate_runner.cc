#include "worker/agent/estimate_runner.h"

#include <system_error>
#include <variant>

#include "proto/common/spec_conversion.h"
#include "worker/agent/captured_run.h"
#include "worker/agent/conversions.h"
#include "worker/agent/durable_file.h"
#include "worker/protocol/launch.h"
#include "worker/protocol/messages.h"

namespace coat::agent {
namespace {

std::string last_line(const std::string& text) {
  const std::size_t last = text.find_last_not_of("\r\n \t");
  if (last == std::string::npos) return {};
  const std::size_t before = text.find_last_of('\n', last);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, last + 1 - begin);
}

v1::EstimateResult internal_error(const std::string& message) {
  v1::EstimateResult result;
  result.mutable_error()->set_reason(v1::ExitStatus::INTERNAL);
  result.mutable_error()->set_message(message);
  return result;
}

}  // namespace

v1::EstimateResult parse_estimate_output(const std::string& output, const std::string& error_output) {
  const std::string line = last_line(output);
  v1::EstimateResult result;
  try {
    const protocol::Event event = protocol::parse_event(line);
    if (const auto* failure = std::get_if<protocol::Failure>(&event)) {
      *result.mutable_error() = to_exit_status(*failure);
      return result;
    }
  } catch (const std::invalid_argument&) {
  }
  try {
    *result.mutable_estimate() = to_message(protocol::parse_estimate(line));
    return result;
  } catch (const std::invalid_argument& error) {
    const std::string said = last_line(error_output);
    return internal_error("the trainer gave no estimate: " +
                          (said.empty() ? error.what() : said.substr(0, 500)));
  }
}

EstimateRunner::EstimateRunner(EstimateRunnerOptions options, const Inventory& inventory)
    : options_(std::move(options)), inventory_(inventory) {
  std::filesystem::remove_all(options_.folder);
  std::filesystem::create_directories(options_.folder);
  for (int i = 0; i < options_.concurrency; ++i) threads_.emplace_back([this] { work(); });
}

EstimateRunner::~EstimateRunner() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void EstimateRunner::submit(const v1::EstimateQuery& query, Answer answer) {
  bool refused = false;
  {
    std::lock_guard lock(mutex_);
    refused = waiting_.size() >= options_.max_waiting;
    if (!refused) waiting_.emplace_back(query, answer);
  }
  wake_.notify_one();
  if (!refused) return;
  v1::EstimateResult result = internal_error("this worker has too many estimates waiting");
  result.set_query_id(query.query_id());
  answer(std::move(result));
}

void EstimateRunner::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const auto [query, answer] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    v1::EstimateResult result;
    try {
      result = run(query);
    } catch (const std::exception& error) {
      result = internal_error(error.what());
    }
    result.set_query_id(query.query_id());
    lock.lock();
    if (stopping_) return;
    lock.unlock();
    answer(std::move(result));
    lock.lock();
  }
}

v1::EstimateResult EstimateRunner::run(const v1::EstimateQuery& query) {
  const spec::ResourceSpec defaults;
  const auto& resources = query.spec().resources();
  const std::string kind = resources.has_device() ? resources.device() : defaults.device;
  const auto device = inventory_.largest(kind);
  if (!device) return internal_error("this worker has no device of the kind '" + kind + "'");
  if (resources.has_devices() && resources.devices() > 1) {
    v1::EstimateResult result;
    result.mutable_error()->set_reason(v1::ExitStatus::BAD_SPEC);
    result.mutable_error()->set_field("resources.devices");
    result.mutable_error()->set_message("resources.devices is " + std::to_string(resources.devices()) +
                                        ", and this release trains on one device");
    result.mutable_error()->set_fix("write 1");
    return result;
  }
  std::filesystem::path spec_path;
  {
    std::lock_guard lock(mutex_);
    spec_path = options_.folder / (std::to_string(++runs_) + ".json");
  }
  replace_file(spec_path, spec_json(query.spec()));
  protocol::Launch launch;
  launch.spec_path = spec_path;
  launch.device = inventory_.trainer_name(*device);
  launch.threads = inventory_.threads(*device);
  launch.memory_bytes = inventory_.devices().at(static_cast<std::size_t>(*device)).memory_bytes();
  launch.estimate = true;
  std::vector<std::string> arguments = protocol::launch_arguments(launch);
  arguments.insert(arguments.begin(), options_.trainer.string());
  const CapturedRun captured = run_captured(arguments, options_.timeout, [this] {
    std::lock_guard lock(mutex_);
    return stopping_;
  });
  std::error_code ignored;
  std::filesystem::remove(spec_path, ignored);
  if (captured.timed_out) {
    return internal_error(
        "the estimate took longer than " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count()) + " s");
  }
  v1::EstimateResult result = parse_estimate_output(captured.output, captured.error_output);
  if (result.has_estimate()) result.mutable_estimate()->set_worker("workers/" + options_.worker_id);
  return result;
}

}  // namespace coat::agent
