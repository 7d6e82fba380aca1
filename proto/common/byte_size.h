// Sizes of memory as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace coat {

std::string bytes_text(std::int64_t bytes);        // "512 B", "1.2 GiB"
std::string exact_bytes_text(std::int64_t bytes);  // "1.2 GiB (1288490189 bytes)": where two are compared

}  // namespace coat
