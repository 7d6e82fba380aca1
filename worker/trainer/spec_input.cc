#include "worker/trainer/spec_input.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "worker/core/base/error.h"

namespace coat::trainer {
namespace {

// No spec comes near it; a device or a data file given by mistake would.
constexpr std::uintmax_t kMaxSpecBytes = std::uintmax_t{4} << 20;

std::string read_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!error && !std::filesystem::is_regular_file(status))
    error = std::make_error_code(std::errc::invalid_argument);
  if (error || !std::filesystem::exists(status)) {
    const std::string why =
        std::filesystem::exists(status) ? "it is no regular file" : "No such file or directory";
    throw SpecError("--spec", "cannot read '" + path + "': " + why, "name the job's JSON file");
  }
  if (std::filesystem::file_size(path, error) > kMaxSpecBytes || error) {
    throw SpecError("--spec", "'" + path + "' is larger than 4 MiB", "name the job's JSON file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file)
    throw SpecError("--spec", "cannot read '" + path + "': " + std::strerror(errno), "make it readable");
  return text;
}

void require_device(const spec::ResourceSpec& resources, at::Device device) {
  if (resources.devices != 1) {
    throw SpecError("resources.devices",
                    std::to_string(resources.devices) + " devices are asked for, and a trainer runs one",
                    "write resources.devices: 1");
  }
  const std::string given = device.is_cpu() ? "cpu" : "cuda";
  if (resources.device == "auto" || resources.device == given) return;
  throw SpecError(
      "resources.device", "the job asks for " + resources.device + " and was given device " + given,
      "start the trainer with --device " + resources.device + ":0, or write resources.device: auto");
}

}  // namespace

spec::JobSpec read_spec(const std::string& path, at::Device device) {
  spec::ParseResult parsed = spec::parse_json(read_file(path));
  if (!parsed.ok()) {
    const spec::Violation& first = parsed.violations.front();
    std::string all = spec::format_violations(parsed.violations);
    std::cerr << all << (all.ends_with('\n') ? "" : "\n") << std::flush;
    while (all.ends_with('\n')) all.pop_back();
    if (parsed.violations.size() == 1) all = first.message;
    throw SpecError(first.field, all, first.fix);
  }
  require_device(parsed.spec.resources, device);
  return std::move(parsed.spec);
}

at::Device parse_device(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  int index = 0;
  if (colon != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, index);
    if (error != std::errc() || stop != end || index < 0 || index > 127) index = -1;
  }
  if (index >= 0 && kind == "cpu") return at::Device(at::kCPU);  // every CPU device is the host's memory
  if (index >= 0 && kind == "cuda") return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
  throw SpecError("--device", "'" + text + "' is no device", "write cpu:0, or cuda:N with the GPU's index");
}

void require_cpu_features() {
#if defined(__x86_64__)
  std::string missing;
  if (!__builtin_cpu_supports("avx2")) missing += " AVX2";
  if (!__builtin_cpu_supports("fma")) missing += " FMA";
  if (!__builtin_cpu_supports("f16c")) missing += " F16C";
  if (!missing.empty()) {
    throw DeviceFaultError(
        "this processor lacks" + missing +
        ", which the CPU kernels are compiled for: run on an x86-64-v3 processor (2013 or later)");
  }
#endif
}

}  // namespace coat::trainer
