// Checkpoints of one job in one folder, over all its attempts:
//
//   <folder>/epoch                      the highest epoch that owns the folder
//   <folder>/lock                       held while ownership is looked at and a checkpoint published
//   <folder>/step-00000100/             complete: parameters.bin, optimizer.bin, manifest.json
//   <folder>/step-00000200.tmp-7/       being written by epoch 7, or left by a writer that died
//   <folder>/damaged-step-00000300/     found damaged and set aside when a run went on from an older one
//
// A checkpoint is written beside its place, every file synced, the manifest last, and then renamed, so a
// folder named step-N is whole whenever the writer or the machine stops. Not thread-safe; several processes
// may use one folder.
//
// A process that is frozen while it holds the lock cannot keep a newer epoch out: its lock is taken over
// after the patience. Nothing is lost by that: taking the folder over removes what the frozen one was about
// to publish, so its rename fails once it goes on, and it finds itself fenced.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/checkpoint/file_system.h"
#include "worker/core/checkpoint/manifest.h"

namespace coat::checkpoint {

// A tensor in host memory, contiguous. `data` is read by save and written by load.
struct HostTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// All that is saved: `parameters` and `optimizer` in registry order.
struct Content {
  Progress progress;
  std::vector<std::pair<std::string, std::string>> identity;
  std::string spec_json;
  std::vector<HostTensor> parameters;
  std::vector<HostTensor> optimizer;
};

struct Saved {
  std::string path;
  std::int64_t step = 0;
  std::int64_t bytes = 0;  // of all its files
};

// What load() found.
struct Loaded {
  Progress progress;
  std::string path;
  std::vector<std::pair<std::string, std::string>> identity;
};

// Which tensors load() fills, and what the checkpoint must be of.
struct Expected {
  std::vector<std::pair<std::string, std::string>> identity;
  std::vector<HostTensor> parameters;
  std::vector<HostTensor> optimizer;
};

// Longer than a living holder needs it.
inline constexpr std::chrono::seconds kLockPatience{10};

class Store {
 public:
  // `keep`: newest complete checkpoints that stay, at least 1.
  Store(FileSystem& files, std::string folder, std::int64_t epoch, std::int64_t keep,
        std::chrono::milliseconds lock_patience = kLockPatience);

  // Makes the folder, takes it over for this epoch, removes what dead writers left, and proves that it can be
  // written. Throws FencedError where a higher epoch owns it, CheckpointError where it cannot be written.
  void open();

  // Throws CheckpointError, naming both numbers, where the disk has no room for a checkpoint of so many
  // bytes.
  void require_room(std::int64_t bytes);

  // Whether any step-N folder is there, complete or not.
  bool has_checkpoints();

  // Throws CheckpointError with the path and the needed bytes; what was complete before stays so, and the
  // unfinished one is removed. Throws FencedError, with nothing published, where a higher epoch took the
  // folder over.
  Saved save(const Content& content);

  // Fills the tensors of `expected` from the newest checkpoint that is complete and whose hashes hold; a
  // damaged one is set aside and told in `warnings`. Nothing there: nullopt. Only damaged ones there, or
  // another identity: CheckpointError.
  std::optional<Loaded> load(const Expected& expected, std::vector<std::string>* warnings);

  const std::string& folder() const { return folder_; }

 private:
  void claim();
  void require_ownership();
  void remove_leftovers();
  void probe_writable();
  void publish(const std::string& temporary, const std::string& final_path);
  void drop_old();
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  FileSystem& files_;
  std::string folder_;
  std::int64_t epoch_;
  std::int64_t keep_;
  std::chrono::milliseconds lock_patience_;
};

// Paths of the step-N folders of `folder`, the newest first.
std::vector<std::string> list_checkpoints(FileSystem& files, const std::string& folder);

// "step-00000100". At least eight digits.
std::string checkpoint_name(std::int64_t step);

}  // namespace coat::checkpoint
