#include "client/cli/human.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "spec/fields.h"

namespace coat::cli {
namespace {

constexpr double kNanosPerSecond = 1e9;

// At most three digits that count: "1.2", "12.3", "123".
std::string short_number(double value) { return fixed_text(value, value < 99.95 ? 1 : 0); }

std::string two_units(std::int64_t large, const char* large_unit, std::int64_t small,
                      const char* small_unit) {
  std::string text = std::to_string(large) + large_unit;
  if (small > 0) text += " " + std::to_string(small) + small_unit;
  return text;
}

}  // namespace

std::string fixed_text(double value, int decimals) {
  if (!std::isfinite(value)) return spec::number_text(value);
  std::array<char, 400> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  return buffer.data();
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return spec::number_text(seconds);
  if (seconds < 0) return "-" + duration_text(-seconds);
  if (seconds < 9.95) return fixed_text(seconds, 1) + "s";
  const std::int64_t whole = std::llround(std::min(seconds, 1e15));
  constexpr std::int64_t kMinute = 60, kHour = 3600, kDay = 86400;
  if (whole < kMinute) return std::to_string(whole) + "s";
  if (whole < kHour) return two_units(whole / kMinute, "m", whole % kMinute, "s");
  if (whole < kDay) return two_units(whole / kHour, "h", whole % kHour / kMinute, "m");
  return two_units(whole / kDay, "d", whole % kDay / kHour, "h");
}

std::string count_text(double count) {
  constexpr std::array<const char*, 4> kUnits = {"k", "M", "G", "T"};
  if (!std::isfinite(count) || std::abs(count) < 999.5) return fixed_text(count, 0);
  double value = count / 1000;
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return short_number(value) + kUnits[unit];
}

std::string thousands_text(std::int64_t count) {
  std::string text = std::to_string(count);
  const std::size_t digits_begin = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > digits_begin + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string percent_text(double fraction) {
  constexpr double kSmallest = 1e-5;
  if (!std::isfinite(fraction)) return spec::number_text(fraction);
  if (fraction == 0) return "0 %";
  if (std::abs(fraction) < kSmallest) return "<0.001 %";
  return fixed_text(fraction * 100, std::abs(fraction) < 1e-3 ? 3 : 2) + " %";
}

std::string factor_text(std::int64_t ours, std::int64_t theirs) {
  if (ours == theirs) return "same";
  if (ours <= 0 || theirs <= 0) return "";
  const double ratio = static_cast<double>(theirs) / static_cast<double>(ours);
  if (ratio >= 1.005) return fixed_text(ratio, 2) + "x less";
  return ratio <= 1 / 1.005 ? fixed_text(1 / ratio, 2) + "x more" : "same";
}

std::string time_text(const google::protobuf::Timestamp& time) {
  const std::time_t seconds = time.seconds();
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "?";
  std::array<char, 64> buffer{};
  return std::string(buffer.data(),
                     std::strftime(buffer.data(), buffer.size(), "%Y-%m-%d %H:%M:%SZ", &parts));
}

double seconds_of(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() / kNanosPerSecond;
}

double seconds_between(const google::protobuf::Timestamp& from, const google::protobuf::Timestamp& to) {
  return static_cast<double>(to.seconds() - from.seconds()) + (to.nanos() - from.nanos()) / kNanosPerSecond;
}

google::protobuf::Timestamp to_timestamp(std::chrono::system_clock::time_point time) {
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  constexpr std::int64_t kNanos = 1'000'000'000;
  google::protobuf::Timestamp result;
  result.set_seconds(nanos / kNanos);
  result.set_nanos(static_cast<std::int32_t>(nanos % kNanos));
  return result;
}

std::optional<std::chrono::milliseconds> parse_duration(const std::string& text) {
  constexpr double kLongest = 1e12;
  double total = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  if (at == end) return std::nullopt;
  while (at != end) {
    double number = 0;
    const auto [next, error] = std::from_chars(at, end, number, std::chars_format::fixed);
    if (error != std::errc{} || number < 0) return std::nullopt;
    const char* unit_end = next;
    while (unit_end != end && *unit_end >= 'a' && *unit_end <= 'z') ++unit_end;
    const std::string unit(next, unit_end);
    if (unit == "ms") {
      total += number;
    } else if (unit == "s" || (unit.empty() && at == text.data() && next == end)) {
      total += number * 1e3;
    } else if (unit == "m") {
      total += number * 60e3;
    } else if (unit == "h") {
      total += number * 3600e3;
    } else {
      return std::nullopt;
    }
    at = unit_end;
  }
  if (!(total <= kLongest)) return std::nullopt;
  return std::chrono::milliseconds(std::llround(total));
}

}  // namespace coat::cli
