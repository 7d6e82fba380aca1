#include "worker/core/checkpoint/checkpoint_files.h"

#include <algorithm>

#include "worker/core/base/error.h"
#include "worker/core/base/sha256.h"

namespace coat::checkpoint {
namespace {

// Large enough to amortise a call, small enough that hash and copy share the cache.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

FileEntry write_tensors(FileSystem& files, const std::string& path, const char* name,
                        const std::vector<HostTensor>& tensors) {
  FileEntry entry{.name = name};
  const auto file = files.create(path + "/" + name);
  Sha256 hash;
  for (const HostTensor& tensor : tensors) {
    entry.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes, entry.bytes});
    const auto* data = static_cast<const char*>(tensor.data);
    const auto total = static_cast<std::size_t>(tensor.bytes);
    for (std::size_t done = 0; done < total; done += kChunkBytes) {
      const std::size_t size = std::min(kChunkBytes, total - done);
      hash.update(data + done, size);
      file->write(data + done, size);
    }
    entry.bytes += tensor.bytes;
  }
  file->sync();
  entry.sha256 = hash.hex_digest();
  return entry;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// The tensors are those of the manifest, in its order.
void require_tensors(const std::string& path, const FileEntry& entry,
                     const std::vector<HostTensor>& tensors) {
  const auto refuse = [&](const std::string& why) {
    throw CheckpointError("the checkpoint '" + path + "' is of another model: " + entry.name + " " + why);
  };
  if (entry.tensors.size() != tensors.size()) {
    refuse("holds " + std::to_string(entry.tensors.size()) + " tensors, the job has " +
           std::to_string(tensors.size()));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& there = entry.tensors[i];
    const HostTensor& wanted = tensors[i];
    if (there.name != wanted.name)
      refuse("holds '" + there.name + "' where the job has '" + wanted.name + "'");
    if (there.dtype != wanted.dtype || there.shape != wanted.shape || there.bytes != wanted.bytes) {
      refuse("holds " + there.name + " as " + there.dtype + " " + shape_text(there.shape) + ", the job has " +
             wanted.dtype + " " + shape_text(wanted.shape));
    }
  }
}

const FileEntry& entry_of(const std::string& path, const Manifest& manifest, const std::string& name) {
  for (const FileEntry& entry : manifest.files) {
    if (entry.name == name) return entry;
  }
  throw DamagedError(path + "/" + kManifestFile + " does not list " + name);
}

}  // namespace

std::int64_t write_checkpoint(FileSystem& files, const std::string& path, const Content& content,
                              std::int64_t epoch) {
  Manifest manifest{.progress = content.progress,
                    .identity = content.identity,
                    .spec_json = content.spec_json,
                    .epoch = epoch};
  manifest.files.push_back(write_tensors(files, path, kParametersFile, content.parameters));
  manifest.files.push_back(write_tensors(files, path, kOptimizerFile, content.optimizer));
  const std::string text = to_json(manifest);
  const auto file = files.create(path + "/" + kManifestFile);
  file->write(text.data(), text.size());
  file->sync();
  std::int64_t bytes = static_cast<std::int64_t>(text.size());
  for (const FileEntry& entry : manifest.files) bytes += entry.bytes;
  return bytes;
}

Manifest read_manifest(FileSystem& files, const std::string& path) {
  const std::string name = path + "/" + kManifestFile;
  try {
    return parse_manifest(read_text(files, name));
  } catch (const FileError& error) {
    throw DamagedError(error.what());
  } catch (const ManifestError& error) {
    throw DamagedError("'" + name + "' " + error.what());
  }
}

void require_identity(const std::string& path, const Manifest& manifest,
                      const std::vector<std::pair<std::string, std::string>>& identity) {
  for (const auto& [field, wanted] : identity) {
    const auto found = std::find_if(manifest.identity.begin(), manifest.identity.end(),
                                    [&field](const auto& entry) { return entry.first == field; });
    const std::string there = found == manifest.identity.end() ? "nothing" : found->second;
    if (there == wanted) continue;
    throw CheckpointError("the checkpoint '" + path + "' was made with " + field + " = " + there +
                          ", the job asks for " + wanted + ": change " + field +
                          " back, or start without --resume in another checkpoint folder");
  }
}

void read_tensors(FileSystem& files, const std::string& path, const Manifest& manifest,
                  const std::string& name, const std::vector<HostTensor>& tensors) {
  const FileEntry& entry = entry_of(path, manifest, name);
  require_tensors(path, entry, tensors);
  const std::string file_path = path + "/" + name;
  try {
    const auto file = files.open(file_path);
    Sha256 hash;
    std::int64_t total = 0;
    for (const HostTensor& tensor : tensors) {
      auto* data = static_cast<char*>(tensor.data);
      const auto wanted = static_cast<std::size_t>(tensor.bytes);
      for (std::size_t done = 0; done < wanted; done += kChunkBytes) {
        const std::size_t size = std::min(kChunkBytes, wanted - done);
        const std::size_t got = file->read(data + done, size);
        hash.update(data + done, got);
        total += static_cast<std::int64_t>(got);
        if (got < size) {
          throw DamagedError("'" + file_path + "' ends after " + std::to_string(total) + " of " +
                             std::to_string(entry.bytes) + " bytes");
        }
      }
    }
    char more = 0;
    if (file->read(&more, 1) != 0) throw DamagedError("'" + file_path + "' is longer than its manifest says");
    const std::string found = hash.hex_digest();
    if (found != entry.sha256) {
      throw DamagedError("'" + file_path + "' has SHA-256 " + found + ", its manifest says " + entry.sha256);
    }
  } catch (const FileError& error) {
    throw DamagedError(error.what());
  }
}

}  // namespace coat::checkpoint
