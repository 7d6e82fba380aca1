// One checkpoint's own files: written with their hashes, read against them.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/checkpoint/checkpoint_store.h"
#include "worker/core/checkpoint/file_system.h"
#include "worker/core/checkpoint/manifest.h"

namespace coat::checkpoint {

// This checkpoint cannot be used but another might: a file is missing, short, or its hash does not hold.
class DamagedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Writes and syncs every file of `content` into the existing folder `path`, the manifest last. Returns their
// bytes.
std::int64_t write_checkpoint(FileSystem& files, const std::string& path, const Content& content,
                              std::int64_t epoch);

// Throws DamagedError.
Manifest read_manifest(FileSystem& files, const std::string& path);

// Throws CheckpointError that names the first field that differs, both values and what to do.
void require_identity(const std::string& path, const Manifest& manifest,
                      const std::vector<std::pair<std::string, std::string>>& identity);

// Fills `tensors` from the file `name`. Throws CheckpointError for tensors that are not those of the
// manifest, DamagedError where the file does not hold what the manifest says; then the tensors hold nothing
// of use.
void read_tensors(FileSystem& files, const std::string& path, const Manifest& manifest,
                  const std::string& name, const std::vector<HostTensor>& tensors);

inline constexpr const char* kParametersFile = "parameters.bin";
inline constexpr const char* kOptimizerFile = "optimizer.bin";
inline constexpr const char* kManifestFile = "manifest.json";

}  // namespace coat::checkpoint
