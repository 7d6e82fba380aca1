// Enum names as label values: lower case.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace coat::control {

inline std::string metric_label(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

}  // namespace coat::control
