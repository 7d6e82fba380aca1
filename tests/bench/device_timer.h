// Times of device work, by events on its stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace coat::bench {

// Throws std::runtime_error with CUDA's own words.
void require(cudaError_t status);

// Median milliseconds of one call, over `repeats` samples after three calls that warm up. Short calls are
// made several times a sample, one behind the other.
double median_ms(const std::function<void()>& call, int repeats, cudaStream_t stream);

// GB/s of a device-to-device copy of 2 GiB, bytes read and written.
double copy_bandwidth(cudaStream_t stream);

// "NVIDIA H200, 143155 MiB, driver for CUDA 13000, runtime 13000", and today's date in UTC.
std::string device_line();
std::string date_line();

// Sums of the time between pairs of events, by name. One stream.
class Profile {
 public:
  explicit Profile(cudaStream_t stream) : stream_(stream) {}
  void enable(bool enabled) { enabled_ = enabled; }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  ~Profile();

  void around(const std::string& name, const std::function<void()>& call);
  struct Entry {
    double ms = 0;
    std::int64_t calls = 0;
  };
  // Waits for the stream and forgets the pairs.
  std::map<std::string, Entry> take();

 private:
  cudaEvent_t record();
  cudaStream_t stream_;
  bool enabled_ = true;
  std::vector<cudaEvent_t> free_;
  struct Pair {
    std::string name;
    cudaEvent_t begin, end;
  };
  std::vector<Pair> pairs_;
};

}  // namespace coat::bench
