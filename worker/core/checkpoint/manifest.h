// What a checkpoint says of itself: manifest.json, written last. It carries a SHA-256 of its own content and
// of every file.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace coat::checkpoint {

inline constexpr int kFormatVersion = 1;

// Where a run stands at a step border; with the parameters and the optimizer state it is all that a run goes
// on from. The random numbers of a step are keyed by (seed, step), so there is no generator state.
struct Progress {
  std::int64_t step = 0;           // optimizer steps done
  std::int64_t data_position = 0;  // sequences consumed
  std::int64_t tokens = 0;
  std::int64_t nonfinite_steps = 0;  // skipped so far
  std::int64_t consecutive_nonfinite_steps = 0;
  double first_loss = 0;
  std::vector<double>
      recent_losses;  // of the newest steps, the newest last: for the mean over the run's last tenth
  bool operator==(const Progress&) const = default;
};

struct TensorEntry {
  std::string name;
  std::string dtype;  // "float32", "uint8"
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // in its file
  bool operator==(const TensorEntry&) const = default;
};

struct FileEntry {
  std::string name;  // "parameters.bin", "optimizer.bin"
  std::int64_t bytes = 0;
  std::string sha256;
  std::vector<TensorEntry> tensors;
  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  Progress progress;
  // What must be equal for a run to go on from here, as (field path, value): the model's shape, the recipe,
  // the group layout of the moments, the data.
  std::vector<std::pair<std::string, std::string>> identity;
  std::string spec_json;   // the job's spec, whole: a sample can be drawn with nothing else
  std::int64_t epoch = 0;  // of the attempt that wrote it
  std::vector<FileEntry> files;
  bool operator==(const Manifest&) const = default;
};

// Thrown by parse_manifest: the text is not what to_json wrote.
class ManifestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string to_json(const Manifest& manifest);
// Refuses text whose own hash does not hold, and a format version that is newer than ours.
Manifest parse_manifest(const std::string& text);

}  // namespace coat::checkpoint
