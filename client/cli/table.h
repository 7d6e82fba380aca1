// Columns of text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace coat::cli {

struct Column {
  std::string title;
  bool right = false;  // aligned, for numbers
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  // Two blanks between columns; no blanks at the end of a line. `indent` blanks before each line.
  void print(std::ostream& out, bool headers, std::size_t indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Control characters and line feeds become blanks, so that a text stays in its line.
std::string one_line(const std::string& text);
// Columns that a UTF-8 text takes, each character counted as one.
std::size_t display_width(const std::string& text);
// The first `columns` of it, with "..." where something is cut.
std::string cut_to_width(const std::string& text, std::size_t columns);

}  // namespace coat::cli
