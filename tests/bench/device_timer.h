// Times of device work, by events on its stream. Handles of CUDA are void* here, so that what uses this
// compiles without CUDA's headers. Errors are std::runtime_error with CUDA's own words.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace coat::bench {

// Median milliseconds of one call, over `repeats` samples after three calls that warm up. Short calls are
// made several times a sample, one behind the other.
double median_ms(const std::function<void()>& call, int repeats, void* stream);

// GB/s of a device-to-device copy of 2 GiB, bytes read and written.
double copy_bandwidth(void* stream);

// "NVIDIA H200, 143155 MiB, driver for CUDA 13000, runtime 13000", and today's date in UTC.
std::string device_line();
std::string date_line();

// Sums of the time between pairs of events, by name. One stream.
class Profile {
 public:
  explicit Profile(void* stream) : stream_(stream) {}
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
  void* record();
  void* stream_;
  bool enabled_ = true;
  std::vector<void*> free_;  // events
  struct Pair {
    std::string name;
    void *begin, *end;
  };
  std::vector<Pair> pairs_;
};

}  // namespace coat::bench
