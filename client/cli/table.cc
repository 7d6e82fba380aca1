#include "client/cli/table.h"

#include <algorithm>

namespace coat::cli {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

}  // namespace

std::string one_line(const std::string& text) {
  std::string result = text;
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return result;
}

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

std::string cut_to_width(const std::string& text, std::size_t columns) {
  if (display_width(text) <= columns) return text;
  constexpr std::size_t kDots = 3;
  const std::size_t kept = columns > kDots ? columns - kDots : 0;
  std::size_t seen = 0;
  std::size_t end = 0;
  while (end < text.size() && (seen < kept || continues(text[end]))) {
    if (!continues(text[end])) ++seen;
    ++end;
  }
  return text.substr(0, end) + std::string(std::min(columns, kDots), '.');
}

void Table::print(std::ostream& out, bool headers, std::size_t indent) const {
  std::vector<std::vector<std::string>> lines;
  if (headers) {
    lines.emplace_back();
    for (const Column& column : columns_) lines.back().push_back(column.title);
  }
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (std::vector<std::string>& line : lines) {
    line.resize(columns_.size());
    for (std::size_t i = 0; i < line.size(); ++i) {
      line[i] = one_line(line[i]);
      widths[i] = std::max(widths[i], display_width(line[i]));
    }
  }
  for (const std::vector<std::string>& line : lines) {
    std::string text(indent, ' ');
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string blanks(widths[i] - display_width(line[i]), ' ');
      text += (i == 0 ? "" : "  ") + (columns_[i].right ? blanks + line[i] : line[i] + blanks);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << '\n';
  }
}

}  // namespace coat::cli
