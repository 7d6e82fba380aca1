#include "worker/core/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "worker/core/base/error.h"
#include "worker/core/checkpoint/checkpoint_files.h"

namespace coat::checkpoint {
namespace {

constexpr const char* kStepPrefix = "step-";
constexpr const char* kEpochFile = "epoch";
constexpr const char* kDamagedPrefix = "damaged-";
constexpr const char* kTemporaryMark = ".tmp-";
constexpr const char* kReplacedMark = ".old-";

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// The step of "step-00000100"; nothing for any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  return number(name.substr(std::string(kStepPrefix).size()));
}

// "<base><mark><epoch>" taken apart.
struct Marked {
  std::string base;
  std::int64_t epoch;
};
std::optional<Marked> marked(const std::string& name, const char* mark) {
  const std::size_t at = name.rfind(mark);
  if (at == std::string::npos) return std::nullopt;
  if (!name.starts_with(kStepPrefix) && name.substr(0, at) != kEpochFile) return std::nullopt;
  const auto epoch = number(name.substr(at + std::string(mark).size()));
  if (!epoch) return std::nullopt;
  return Marked{name.substr(0, at), *epoch};
}

bool disk_is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

std::int64_t bytes_of(const Content& content) {
  std::int64_t bytes = 0;
  for (const HostTensor& tensor : content.parameters) bytes += tensor.bytes;
  for (const HostTensor& tensor : content.optimizer) bytes += tensor.bytes;
  return bytes;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return kStepPrefix + digits;
}

std::vector<std::string> list_checkpoints(FileSystem& files, const std::string& folder) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const std::string& name : files.list(folder)) {
    if (const auto step = step_of(name)) found.emplace_back(*step, folder + "/" + name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& entry : found) paths.push_back(std::move(entry.second));
  return paths;
}

Store::Store(FileSystem& files, std::string folder, std::int64_t epoch, std::int64_t keep,
             std::chrono::milliseconds lock_patience)
    : files_(files),
      folder_(std::move(folder)),
      epoch_(epoch),
      keep_(std::max<std::int64_t>(keep, 1)),
      lock_patience_(lock_patience) {}

void Store::open() {
  try {
    files_.create_directories(folder_);
    claim();
    remove_leftovers();
    probe_writable();
  } catch (const FileError& error) {
    throw CheckpointError("the checkpoint folder '" + folder_ + "' cannot be used: " + error.what() +
                          "; give --checkpoint-dir a folder that can be written");
  }
}

void Store::require_ownership() {
  if (!files_.exists(path_of(kEpochFile))) return;
  std::string text = read_text(files_, path_of(kEpochFile));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const auto owner = number(text);
  if (!owner) {
    throw CheckpointError("'" + path_of(kEpochFile) + "' holds no epoch but '" + text +
                          "'; remove the file if no other attempt of this job runs");
  }
  if (*owner > epoch_) {
    throw FencedError("the checkpoint folder '" + folder_ + "' belongs to epoch " + std::to_string(*owner) +
                      "; this attempt has epoch " + std::to_string(epoch_));
  }
}

void Store::claim() {
  const auto held = files_.lock(path_of("lock"), lock_patience_);
  require_ownership();
  const std::string text = std::to_string(epoch_) + "\n";
  const std::string temporary = path_of(kEpochFile + std::string(kTemporaryMark) + std::to_string(epoch_));
  {
    const auto file = files_.create(temporary);
    file->write(text.data(), text.size());
    file->sync();
  }
  files_.rename(temporary, path_of(kEpochFile));
  files_.sync_directory(folder_);
}

// Only what is no newer epoch's: that one is fenced off here already, and its folder is its own.
void Store::remove_leftovers() {
  const auto held = files_.lock(path_of("lock"), lock_patience_);
  for (const std::string& name : files_.list(folder_)) {
    if (const auto temporary = marked(name, kTemporaryMark); temporary && temporary->epoch <= epoch_) {
      files_.remove_all(path_of(name));
    }
    if (const auto replaced = marked(name, kReplacedMark); replaced && replaced->epoch <= epoch_) {
      // The writer stopped between moving the old one away and the new one in.
      if (files_.exists(path_of(replaced->base))) {
        files_.remove_all(path_of(name));
      } else {
        files_.rename(path_of(name), path_of(replaced->base));
      }
    }
  }
}

void Store::probe_writable() {
  const std::string path = path_of(checkpoint_name(0) + kTemporaryMark + std::to_string(epoch_));
  files_.create_directories(path);
  {
    const auto file = files_.create(path + "/probe");
    file->write("probe", 5);
    file->sync();
  }
  files_.remove_all(path);
}

void Store::require_room(std::int64_t bytes) {
  std::int64_t available = 0;
  try {
    available = files_.free_bytes(folder_);
  } catch (const FileError& error) {
    throw CheckpointError(error.what());
  }
  if (available >= bytes) return;
  throw CheckpointError("the disk of the checkpoint folder '" + folder_ + "' has " +
                        std::to_string(available) + " bytes free and a checkpoint of this job needs " +
                        std::to_string(bytes) +
                        ": free space, or give --checkpoint-dir a folder on another disk");
}

bool Store::has_checkpoints() { return !list_checkpoints(files_, folder_).empty(); }

Saved Store::save(const Content& content) {
  const std::string name = checkpoint_name(content.progress.step);
  const std::string temporary = path_of(name + kTemporaryMark + std::to_string(epoch_));
  Saved saved{.path = path_of(name), .step = content.progress.step};
  try {
    files_.remove_all(temporary);
    files_.create_directories(temporary);
    saved.bytes = write_checkpoint(files_, temporary, content, epoch_);
    files_.sync_directory(temporary);
    publish(temporary, saved.path);
  } catch (const FencedError&) {
    files_.remove_all(temporary);
    throw;
  } catch (const FileError& error) {
    try {
      files_.remove_all(temporary);
    } catch (const FileError&) {  // the first failure is the one to tell; open() of the next attempt removes
                                  // the rest
    }
    require_ownership();  // a newer attempt clears away what older ones were writing
    throw CheckpointError("the checkpoint of step " + std::to_string(content.progress.step) + " needs " +
                          std::to_string(bytes_of(content)) + " bytes in '" + folder_ + "': " + error.what() +
                          (disk_is_full(error.error) ? "; free space on that disk and resume" : "") +
                          "; earlier checkpoints are intact");
  }
  drop_old();
  return saved;
}

void Store::publish(const std::string& temporary, const std::string& final_path) {
  const auto held = files_.lock(path_of("lock"), lock_patience_);
  require_ownership();
  const std::string replaced = final_path + kReplacedMark + std::to_string(epoch_);
  const bool replaces = files_.exists(final_path);
  if (replaces) files_.rename(final_path, replaced);
  files_.rename(temporary, final_path);
  files_.sync_directory(folder_);
  if (replaces) files_.remove_all(replaced);
}

// What cannot be removed now is no failure of the save: it is tried again after the next one.
void Store::drop_old() {
  try {
    const std::vector<std::string> paths = list_checkpoints(files_, folder_);
    for (std::size_t i = static_cast<std::size_t>(keep_); i < paths.size(); ++i) {
      // Renamed first, so that a half-removed one is never taken for a checkpoint.
      const std::string doomed = paths[i] + kTemporaryMark + std::to_string(epoch_);
      files_.rename(paths[i], doomed);
      files_.remove_all(doomed);
    }
  } catch (const FileError&) {
  }
}

std::optional<Loaded> Store::load(const Expected& expected, std::vector<std::string>* warnings) {
  std::vector<std::string> damaged;
  std::string last_reason;
  try {
    for (const std::string& path : list_checkpoints(files_, folder_)) {
      try {
        const Manifest manifest = read_manifest(files_, path);
        require_identity(path, manifest, expected.identity);
        read_tensors(files_, path, manifest, kParametersFile, expected.parameters);
        read_tensors(files_, path, manifest, kOptimizerFile, expected.optimizer);
        // Set aside only now that an older one holds: were there none, everything stays where it was found.
        for (const std::string& bad : damaged) {
          const std::string aside = path_of(kDamagedPrefix + bad.substr(folder_.size() + 1));
          files_.remove_all(aside);
          files_.rename(bad, aside);
        }
        return Loaded{manifest.progress, path, manifest.identity};
      } catch (const DamagedError& error) {
        damaged.push_back(path);
        last_reason = error.what();
        warnings->push_back("checkpoint '" + path + "' is damaged and was skipped: " + error.what());
      }
    }
  } catch (const FileError& error) {
    throw CheckpointError("checkpoints in '" + folder_ + "' cannot be read: " + error.what());
  }
  if (damaged.empty()) return std::nullopt;
  throw CheckpointError("no checkpoint in '" + folder_ + "' is whole: " + last_reason +
                        "; restore it from a copy, or start without --resume in another checkpoint folder");
}

}  // namespace coat::checkpoint
