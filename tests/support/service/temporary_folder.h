// A folder that lives as long as the object.
#pragma once

#include <filesystem>
#include <string>

namespace coat::testing {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);  // empty when it cannot be read
void write_file(const std::filesystem::path& path, const std::string& content);

}  // namespace coat::testing
