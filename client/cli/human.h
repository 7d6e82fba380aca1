// Quantities as people read and write them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

namespace coat::cli {

std::string duration_text(double seconds);           // "0.4s", "45s", "3m 20s", "2h 5m", "3d 4h"
std::string count_text(double count);                // "950", "3.4k", "3.3M"
std::string thousands_text(std::int64_t count);      // "245,760"
std::string percent_text(double fraction);           // "2.63 %", "0 %", "<0.001 %"
std::string fixed_text(double value, int decimals);  // "NaN" and "Infinity" where it is not finite
std::string factor_text(std::int64_t ours, std::int64_t theirs);  // "3.9x less", "same", "1.2x more"
std::string time_text(const google::protobuf::Timestamp& time);   // "2026-01-02 03:04:05Z"

double seconds_of(const google::protobuf::Duration& duration);
double seconds_between(const google::protobuf::Timestamp& from, const google::protobuf::Timestamp& to);
google::protobuf::Timestamp to_timestamp(std::chrono::system_clock::time_point time);

// "90s", "10m", "1h30m", "1.5h", "250ms"; a number without unit is seconds. Nothing when it is none of these.
std::optional<std::chrono::milliseconds> parse_duration(const std::string& text);

}  // namespace coat::cli
