// Small files that must be whole whenever anyone reads them: written beside their place, then renamed into
// it. All throw std::system_error that names the path. Thread-safe where the paths differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace coat::agent {

// Whole and on disk (file and folder synced) when it returns: for what must survive a crash of the machine.
void write_durably(const std::filesystem::path& path, const std::string& content);
// Whole, and survives the death of this process; not synced.
void replace_file(const std::filesystem::path& path, const std::string& content);

// Nothing when there is no such file.
std::optional<std::string> read_file(const std::filesystem::path& path);
// Bytes; 0 when there is no such file.
std::int64_t size_of_file(const std::filesystem::path& path);
// At most `limit` bytes from `offset` on; empty at the end of the file and when there is none.
std::string read_range(const std::filesystem::path& path, std::int64_t offset, std::size_t limit);

}  // namespace coat::agent
