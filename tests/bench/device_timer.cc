#include "tests/bench/device_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <stdexcept>

namespace coat::bench {
namespace {

void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

// Milliseconds of `calls` calls, one behind the other.
double sample_ms(const std::function<void()>& call, int calls, cudaEvent_t begin, cudaEvent_t end,
                 void* stream) {
  require(cudaEventRecord(begin, stream_of(stream)));
  for (int i = 0; i < calls; ++i) call();
  require(cudaEventRecord(end, stream_of(stream)));
  require(cudaEventSynchronize(end));
  float ms = 0;
  require(cudaEventElapsedTime(&ms, begin, end));
  return static_cast<double>(ms);
}

}  // namespace

double median_ms(const std::function<void()>& call, int repeats, void* stream) {
  // A device that was idle waits for the host, which takes some microseconds a kernel: a sample is long
  // enough to hide that, as a training step does.
  constexpr double kSampleMs = 1.0;
  constexpr int kWarmUp = 3, kMostCalls = 32;
  cudaEvent_t begin = nullptr, end = nullptr;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  double one = 0;
  for (int i = 0; i < kWarmUp; ++i) one = sample_ms(call, 1, begin, end, stream);
  const int calls = one * kMostCalls < kSampleMs ? kMostCalls : static_cast<int>(std::ceil(kSampleMs / one));
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(sample_ms(call, calls, begin, end, stream) / calls);
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

double copy_bandwidth(void* stream) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  void *from = nullptr, *to = nullptr;
  require(cudaMalloc(&from, kBytes));
  require(cudaMalloc(&to, kBytes));
  require(cudaMemset(from, 0x5A, kBytes));
  const double ms = median_ms(
      [&] { require(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream_of(stream))); }, 15,
      stream);
  require(cudaFree(from));
  require(cudaFree(to));
  return 2.0 * static_cast<double>(kBytes) / ms / 1e6;
}

std::string device_line() {
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  require(cudaGetDeviceProperties(&properties, 0));
  require(cudaDriverGetVersion(&driver));
  require(cudaRuntimeGetVersion(&runtime));
  return std::string(properties.name) + ", " + std::to_string(properties.totalGlobalMem >> 20) +
         " MiB, driver for CUDA " + std::to_string(driver) + ", runtime " + std::to_string(runtime);
}

std::string date_line() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return date;
}

Profile::~Profile() {
  for (const Pair& pair : pairs_) {
    cudaEventDestroy(event_of(pair.begin));
    cudaEventDestroy(event_of(pair.end));
  }
  for (void* event : free_) cudaEventDestroy(event_of(event));
}

void* Profile::record() {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    require(cudaEventCreate(&event));
  } else {
    event = event_of(free_.back());
    free_.pop_back();
  }
  require(cudaEventRecord(event, stream_of(stream_)));
  return event;
}

void Profile::around(const std::string& name, const std::function<void()>& call) {
  if (!enabled_) return call();
  void* begin = record();
  call();
  pairs_.push_back({name, begin, record()});
}

std::map<std::string, Profile::Entry> Profile::take() {
  require(cudaStreamSynchronize(stream_of(stream_)));
  std::map<std::string, Entry> entries;
  for (const Pair& pair : pairs_) {
    float ms = 0;
    require(cudaEventElapsedTime(&ms, event_of(pair.begin), event_of(pair.end)));
    Entry& entry = entries[pair.name];
    entry.ms += static_cast<double>(ms);
    ++entry.calls;
    free_.push_back(pair.begin);
    free_.push_back(pair.end);
  }
  pairs_.clear();
  return entries;
}

}  // namespace coat::bench
