#include "worker/agent/nvml.h"

#include <dlfcn.h>

namespace coat::agent {
namespace {

// nvml.h: names and layouts as its documentation gives them.
using Device = struct NvmlDevice*;
using EventSet = struct NvmlEventSet*;
using Return = int;
constexpr Return kSuccess = 0;
constexpr unsigned long long kEventXidCriticalError = 0x8;

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct EventData {
  Device device;
  unsigned long long event_type;
  unsigned long long event_data;
  unsigned gpu_instance;
  unsigned compute_instance;
};

template <typename Function>
bool resolve(void* handle, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(::dlsym(handle, name));
  return *function != nullptr;
}

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  bool initialised = false;
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;
  Return (*device_handle)(unsigned, Device*) = nullptr;
  Return (*device_name)(Device, char*, unsigned) = nullptr;
  Return (*device_uuid)(Device, char*, unsigned) = nullptr;
  Return (*device_memory)(Device, Memory*) = nullptr;
  Return (*event_set_create)(EventSet*) = nullptr;
  Return (*event_set_free)(EventSet) = nullptr;
  Return (*register_events)(Device, unsigned long long, EventSet) = nullptr;
  Return (*event_set_wait)(EventSet, EventData*, unsigned) = nullptr;
  std::vector<Device> devices;
  EventSet events = nullptr;

  bool load() {
    return resolve(handle, "nvmlInit_v2", &init) && resolve(handle, "nvmlShutdown", &shutdown) &&
           resolve(handle, "nvmlErrorString", &error_string) &&
           resolve(handle, "nvmlDeviceGetCount_v2", &device_count) &&
           resolve(handle, "nvmlDeviceGetHandleByIndex_v2", &device_handle) &&
           resolve(handle, "nvmlDeviceGetName", &device_name) &&
           resolve(handle, "nvmlDeviceGetUUID", &device_uuid) &&
           resolve(handle, "nvmlDeviceGetMemoryInfo", &device_memory);
  }
};

std::unique_ptr<Nvml> Nvml::load(std::string* why) {
  std::unique_ptr<Nvml> nvml(new Nvml());
  nvml->library_ = std::make_unique<Library>();
  if (!nvml->start(why)) return nullptr;
  return nvml;
}

bool Nvml::start(std::string* why) {
  Library& library = *library_;
  library.handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    *why = "no libnvidia-ml.so.1";
    return false;
  }
  if (!library.load()) {
    *why = "libnvidia-ml.so.1 lacks a function: a driver older than 418";
    return false;
  }
  Return code = library.init();
  library.initialised = code == kSuccess;
  unsigned count = 0;
  if (code == kSuccess) code = library.device_count(&count);
  if (code != kSuccess || count == 0) {
    *why = code == kSuccess ? "the driver sees no GPU" : std::string("NVML: ") + library.error_string(code);
    return false;
  }
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    char name[96] = {};
    char uuid[96] = {};
    Memory memory{};
    if (library.device_handle(i, &device) == kSuccess) {
      library.device_name(device, name, sizeof name);
      library.device_uuid(device, uuid, sizeof uuid);
      library.device_memory(device, &memory);
    }
    library.devices.push_back(device);
    gpus_.push_back({static_cast<int>(i), name, uuid, static_cast<std::int64_t>(memory.total)});
  }
  register_events();
  return true;
}

void Nvml::register_events() {
  Library& library = *library_;
  if (!resolve(library.handle, "nvmlEventSetCreate", &library.event_set_create) ||
      !resolve(library.handle, "nvmlEventSetFree", &library.event_set_free) ||
      !resolve(library.handle, "nvmlDeviceRegisterEvents", &library.register_events) ||
      !resolve(library.handle, "nvmlEventSetWait_v2", &library.event_set_wait) ||
      library.event_set_create(&library.events) != kSuccess) {
    library.events = nullptr;
    return;
  }
  bool any = false;
  for (const Device device : library.devices) {
    if (device != nullptr)
      any |= library.register_events(device, kEventXidCriticalError, library.events) == kSuccess;
  }
  if (any) return;
  library.event_set_free(library.events);
  library.events = nullptr;
}

Nvml::~Nvml() {
  if (library_->events != nullptr) library_->event_set_free(library_->events);
  if (library_->initialised) library_->shutdown();
  if (library_->handle != nullptr) ::dlclose(library_->handle);
}

std::optional<std::string> Nvml::query_error(int gpu) const {
  const Device device = library_->devices.at(static_cast<std::size_t>(gpu));
  if (device == nullptr) return "the driver cannot open the GPU";
  Memory memory{};
  const Return code = library_->device_memory(device, &memory);
  if (code == kSuccess) return std::nullopt;
  return std::string("NVML: ") + library_->error_string(code);
}

std::vector<XidEvent> Nvml::take_xid_events() {
  std::vector<XidEvent> found;
  EventData data{};
  while (library_->events != nullptr && library_->event_set_wait(library_->events, &data, 0) == kSuccess) {
    if (data.event_type != kEventXidCriticalError) continue;
    for (std::size_t i = 0; i < library_->devices.size(); ++i) {
      if (library_->devices[i] == data.device) found.push_back({static_cast<int>(i), data.event_data});
    }
  }
  return found;
}

}  // namespace coat::agent
