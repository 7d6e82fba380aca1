// NVIDIA's management library, loaded at run time: machines without a driver run the same binary. Declares
// the few functions that are used; all of them have been in the library, in these forms, since driver 418.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace coat::agent {

struct GpuInfo {
  int index = 0;
  std::string model;
  std::string uuid;
  std::int64_t total_bytes = 0;
};

// A critical error that the driver reported (an XID).
struct XidEvent {
  int gpu = 0;
  std::uint64_t xid = 0;
};

// Not thread-safe: the inventory owns it.
class Nvml {
 public:
  // Null when there is no library, no driver or no GPU; `why` then says which.
  static std::unique_ptr<Nvml> load(std::string* why);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::vector<GpuInfo>& gpus() const { return gpus_; }
  // Asks the GPU something that needs it to answer: nothing when it does, else the driver's words.
  std::optional<std::string> query_error(int gpu) const;
  // Events since the last call; empty also where the driver gives none (in some virtual machines).
  std::vector<XidEvent> take_xid_events();

 private:
  Nvml() = default;
  bool start(std::string* why);
  void register_events();
  struct Library;
  std::unique_ptr<Library> library_;
  std::vector<GpuInfo> gpus_;
};

}  // namespace coat::agent
