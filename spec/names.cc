#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "spec/fields.h"

namespace coat::spec {
namespace {

// Changes of one letter, and swaps of two neighbours, that turn a into b (optimal string alignment).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> two_back(b.size() + 1), back(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) back[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = back[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
    two_back.swap(back);
    back.swap(row);
  }
  return back[b.size()];
}

// Case and the choice of separator are no difference.
std::string folded(const std::string& name) {
  std::string result;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

}  // namespace

std::optional<std::string> nearest_name(const std::string& name, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 100;
  if (name.empty() || name.size() > kLongest) return std::nullopt;
  const std::string wanted = folded(name);
  const std::size_t allowed = std::clamp<std::size_t>(wanted.size() / 3, 1, 3);
  std::optional<std::string> best;
  std::size_t best_distance = allowed + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(wanted, folded(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> names = {"coat", "coat-paper", "bf16"};
  return names;
}

const std::vector<std::string>& field_paths() {
  static const std::vector<std::string> paths = [] {
    std::vector<std::string> result;
    const JobSpec spec;
    visit_fields(spec, [&](const char* path, const auto&, const auto&) { result.emplace_back(path); });
    return result;
  }();
  return paths;
}

void sort_by_field(std::vector<Violation>& violations) {
  const std::vector<std::string>& paths = field_paths();
  const auto place = [&](const Violation& violation) -> std::size_t {
    const auto exact = std::find(paths.begin(), paths.end(), violation.field);
    if (exact != paths.end()) return static_cast<std::size_t>(exact - paths.begin());
    const std::string section = violation.field.substr(0, violation.field.find('.'));
    std::size_t last = paths.size();
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (paths[i] == section || paths[i].starts_with(section + ".")) last = i;
    }
    return last;
  };
  std::stable_sort(violations.begin(), violations.end(),
                   [&](const Violation& a, const Violation& b) { return place(a) < place(b); });
}

std::string format_violations(const std::vector<Violation>& violations) {
  std::string result;
  for (const Violation& violation : violations) {
    if (!violation.field.empty()) result += violation.field + ": ";
    result += violation.message;
    if (!violation.fix.empty()) result += "; " + violation.fix;
    result += '\n';
  }
  return result;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  // Rates of everyday size as people write them: 0.0003, not 3e-04.
  constexpr double kSmallestFixed = 1e-5, kLargestFixed = 1e15;
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= kSmallestFixed && size < kLargestFixed);
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  return std::string(buffer.data(), end);
}

std::string quoted(const std::string& text) {
  constexpr std::size_t kShown = 60;
  std::string result = "\"";
  for (const char c : text.substr(0, kShown)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::array<char, 5> code{};
      std::snprintf(code.data(), code.size(), "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      result += code.data();
    } else {
      result += c;
    }
  }
  return result + (text.size() > kShown ? "...\"" : "\"");
}

std::string one_of(const std::vector<std::string>& names) {
  std::string result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) result += i + 1 == names.size() ? " or " : ", ";
    result += names[i];
  }
  return result;
}

}  // namespace coat::spec
