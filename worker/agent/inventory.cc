#include "worker/agent/inventory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace coat::agent {
namespace {

// The driver's and the CUDA context's own.
constexpr std::int64_t kGpuReserveBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMinCpuReserveBytes = std::int64_t{512} << 20;
constexpr std::chrono::minutes kQuiet{5};

std::optional<std::int64_t> read_limit(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::int64_t bytes = 0;
  if (in >> bytes && bytes > 0) return bytes;  // "max" is no number
  return std::nullopt;
}

// The limits of a cgroup and of all that it lies in.
void narrow(std::filesystem::path group, const std::filesystem::path& mount, const char* file,
            std::int64_t* bytes) {
  while (true) {
    if (const auto limit = read_limit(group / file)) *bytes = std::min(*bytes, *limit);
    if (group == mount || !group.has_relative_path()) return;
    group = group.parent_path();
  }
}

std::int64_t total_memory_bytes() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string name;
    std::int64_t kib = 0;
    if (fields >> name >> kib && name == "MemTotal:") return kib * 1024;
  }
  return std::int64_t{1} << 30;
}

struct XidRow {
  std::uint64_t xid;
  XidClass kind;
};

// From NVIDIA's "XID Errors" catalogue: what an application's bug causes, and after what the device needs a
// reset.
constexpr XidRow kXids[] = {
    {13, XidClass::kApplication},   // graphics engine exception
    {31, XidClass::kApplication},   // memory page fault
    {43, XidClass::kApplication},   // GPU stopped processing
    {45, XidClass::kApplication},   // preemptive cleanup
    {68, XidClass::kApplication},   // video processor exception
    {109, XidClass::kApplication},  // context switch timeout
    {48, XidClass::kFatal},         // double bit ECC error
    {64, XidClass::kFatal},         // row remapping failed
    {74, XidClass::kFatal},         // NVLink error
    {79, XidClass::kFatal},         // fallen off the bus
    {95, XidClass::kFatal},         // uncontained ECC error
    {119, XidClass::kFatal},        // GSP timeout
    {120, XidClass::kFatal},        // GSP error
};

}  // namespace

XidClass classify_xid(std::uint64_t xid) {
  for (const XidRow& row : kXids) {
    if (row.xid == xid) return row.kind;
  }
  return XidClass::kSuspect;
}

std::int64_t machine_memory_bytes() {
  std::int64_t bytes = total_memory_bytes();
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(std::min(second + 2, line.size()));
    const std::filesystem::path root = "/sys/fs/cgroup";
    if (controllers.empty()) narrow(root / path, root, "memory.max", &bytes);
    // In a container the path is the host's and the mount shows the group itself.
    if (controllers == "memory") {
      narrow(root / "memory" / path, root / "memory", "memory.limit_in_bytes", &bytes);
      narrow(root / "memory", root / "memory", "memory.limit_in_bytes", &bytes);
    }
  }
  return bytes;
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

struct Inventory::Entry {
  v1::Device device;
  std::string trainer_name;
  int threads = 0;
  int gpu = -1;  // of NVML
  bool faulted = false;
  std::vector<ProcessIdentity> survivors;
  std::optional<SteadyTime> suspect_since;
  std::string suspect_message;
};

Inventory::Inventory(const InventoryOptions& options, std::unique_ptr<Nvml> nvml, Clock& clock)
    : clock_(clock), nvml_(std::move(nvml)) {
  if (nvml_) {
    for (const GpuInfo& gpu : nvml_->gpus()) {
      Entry entry;
      entry.device.set_kind(v1::Device::CUDA);
      entry.device.set_model(gpu.model);
      entry.device.set_uuid(gpu.uuid);
      entry.device.set_memory_bytes(std::max<std::int64_t>(0, gpu.total_bytes - kGpuReserveBytes));
      entry.trainer_name = "cuda:" + std::to_string(gpu.index);
      entry.gpu = gpu.index;
      entries_.push_back(entry);
    }
  }
  cpu_count_ = options.cpu_devices >= 0 ? options.cpu_devices : (entries_.empty() ? 1 : 0);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const std::int64_t machine = machine_memory_bytes();
  const std::int64_t usable = machine - std::max(kMinCpuReserveBytes, machine / 10);
  for (int i = 0; i < cpu_count_; ++i) {
    Entry entry;
    entry.device.set_kind(v1::Device::CPU);
    entry.device.set_model(processor_name());
    entry.device.set_uuid("CPU-" + options.worker_id + "-" + std::to_string(i));
    entry.device.set_memory_bytes(options.memory_limit_bytes > 0
                                      ? options.memory_limit_bytes
                                      : std::max<std::int64_t>(1, usable / cpu_count_));
    entry.trainer_name = "cpu:" + std::to_string(i);
    entry.threads = std::max(1, cores / cpu_count_);
    entries_.push_back(entry);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].device.set_index(static_cast<int>(i));
    entries_[i].device.set_health(v1::Device::OK);
  }
}

Inventory::~Inventory() = default;

std::vector<v1::Device> Inventory::devices() const {
  std::lock_guard lock(mutex_);
  std::vector<v1::Device> devices;
  for (const Entry& entry : entries_) devices.push_back(entry.device);
  return devices;
}

std::string Inventory::trainer_name(int index) const {
  std::lock_guard lock(mutex_);
  return entries_.at(static_cast<std::size_t>(index)).trainer_name;
}

int Inventory::threads(int index) const {
  std::lock_guard lock(mutex_);
  return entries_.at(static_cast<std::size_t>(index)).threads;
}

std::optional<int> Inventory::largest(const std::string& kind) const {
  std::lock_guard lock(mutex_);
  const bool has_gpu =
      std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.gpu >= 0; });
  const auto wanted = kind == "cuda" || (kind == "auto" && has_gpu) ? v1::Device::CUDA : v1::Device::CPU;
  std::optional<int> best;
  for (const Entry& entry : entries_) {
    if (entry.device.kind() != wanted) continue;
    if (!best ||
        entry.device.memory_bytes() > entries_[static_cast<std::size_t>(*best)].device.memory_bytes()) {
      best = entry.device.index();
    }
  }
  return best;
}

void Inventory::set(Entry& entry, v1::Device::Health health, const std::string& message) {
  if (entry.device.health() == health && entry.device.health_message() == message) return;
  entry.device.set_health(health);
  entry.device.set_health_message(message);
  changed_ = true;
}

void Inventory::report_survivors(const std::vector<int>& devices,
                                 const std::vector<ProcessIdentity>& survivors) {
  if (survivors.empty()) return;
  std::lock_guard lock(mutex_);
  for (const int index : devices) {
    if (index < 0 || static_cast<std::size_t>(index) >= entries_.size()) continue;
    Entry& entry = entries_[static_cast<std::size_t>(index)];
    entry.survivors.insert(entry.survivors.end(), survivors.begin(), survivors.end());
    set(entry, v1::Device::SUSPECT,
        "process " + std::to_string(survivors.front().pid) + " of an ended job cannot be killed");
  }
}

void Inventory::report_fault(const std::vector<int>& devices, const std::string& message) {
  std::lock_guard lock(mutex_);
  for (const int index : devices) {
    if (index < 0 || static_cast<std::size_t>(index) >= entries_.size()) continue;
    Entry& entry = entries_[static_cast<std::size_t>(index)];
    if (entry.gpu < 0) continue;  // a processor that had faulted would not be asked
    entry.suspect_since = clock_.now();
    entry.suspect_message = message;
  }
}

void Inventory::check_gpus() {
  if (!nvml_) return;
  for (const XidEvent& event : nvml_->take_xid_events()) {
    const XidClass kind = classify_xid(event.xid);
    if (kind == XidClass::kApplication) continue;
    Entry& entry = entries_.at(static_cast<std::size_t>(event.gpu));
    entry.suspect_since = clock_.now();
    entry.suspect_message = "the driver reported XID " + std::to_string(event.xid);
    if (kind == XidClass::kFatal) entry.faulted = true;
  }
}

bool Inventory::check() {
  std::lock_guard lock(mutex_);
  check_gpus();
  for (Entry& entry : entries_) {
    std::erase_if(entry.survivors, [](const ProcessIdentity& survivor) { return !is_alive(survivor); });
    const auto error = entry.gpu >= 0 ? nvml_->query_error(entry.gpu) : std::nullopt;
    if (entry.suspect_since && clock_.now() - *entry.suspect_since >= kQuiet) entry.suspect_since.reset();
    if (error) {
      set(entry, v1::Device::FAULTED, *error);
    } else if (entry.faulted) {
      set(entry, v1::Device::FAULTED, entry.suspect_message + ": it needs a reset, then restart the worker");
    } else if (!entry.survivors.empty()) {
      set(entry, v1::Device::SUSPECT, entry.device.health_message());
    } else if (entry.suspect_since) {
      set(entry, v1::Device::SUSPECT, entry.suspect_message);
    } else {
      set(entry, v1::Device::OK, "");
    }
  }
  return std::exchange(changed_, false);
}

}  // namespace coat::agent
