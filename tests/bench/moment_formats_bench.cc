// What the formats of optimizer moments cost in accuracy: the tables 1 and 8 of COAT's paper and more, on
// states of a training run, and whether a stored second moment follows shrinking gradients.
//
//   moment_formats_bench --checkpoint FOLDER/step-00000300 [--only matrix|mixes|staleness]
//
// The checkpoint is one of recipe bf16, whose moments are FP32, for example of deploy/quickstart --recipe
// bf16.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/bench/moment_errors.h"
#include "tests/bench/moment_staleness.h"
#include "tests/bench/stored_moment.h"

namespace coat::bench {
namespace {

constexpr int kGroups[] = {16, 32, 64, 128, 256, 1024};
constexpr std::size_t kUsual = 3;  // place of 128

std::vector<MomentFormat> formats(MomentUse use, int group, Rounding rounding) {
  std::vector<MomentFormat> result = {MomentFormat{}};
  const auto add = [&](MomentCode code, bool expand) {
    result.push_back(moment_format(code, expand, group, rounding));
  };
  for (const MomentCode code : {MomentCode::kE4M3, MomentCode::kE5M2}) {
    for (const bool expand : {false, true}) add(code, expand);
  }
  const bool first = use == MomentUse::kFirst;
  for (const MomentCode code : {first ? MomentCode::kDe8 : MomentCode::kDe8Unsigned,
                                first ? MomentCode::kSoftsign8 : MomentCode::kSqrt8}) {
    for (const bool expand : {false, true}) add(code, expand);
  }
  add(first ? MomentCode::kOctave8 : MomentCode::kOctave8Unsigned, true);
  if (!first) add(MomentCode::kLog255, true);
  return result;
}

std::vector<RoundTrip> round_trips(const std::vector<MomentState>& states, MomentUse use, int group,
                                   Rounding rounding) {
  std::vector<RoundTrip> trips;
  for (const MomentFormat& format : formats(use, group, rounding))
    trips.push_back(round_trip(states, format, use));
  return trips;
}

const char* name_of_rounding(Rounding rounding) {
  return rounding == Rounding::kStochastic ? "stochastic rounding" : "rounding to nearest";
}

// Rows m, columns v: MSE in units of 1e-4.
void print_matrix(const std::vector<MomentState>& states, Rounding rounding) {
  const std::vector<RoundTrip> m = round_trips(states, MomentUse::kFirst, kGroups[kUsual], rounding);
  const std::vector<RoundTrip> v = round_trips(states, MomentUse::kSecond, kGroups[kUsual], rounding);
  std::printf("\nMSE of m / (sqrt v + 1e-8), times 1e4; rows m, columns v; groups of 128, %s\n%-13s",
              name_of_rounding(rounding), "");
  for (const RoundTrip& column : v) std::printf(" %14s", label_of(column.format).c_str());
  for (const RoundTrip& row : m) {
    std::printf("\n%-13s", label_of(row.format).c_str());
    for (const RoundTrip& column : v) std::printf(" %14.5g", 1e4 * update_error(states, row, column));
  }
  std::printf(
      "\n\neach moment alone: relative error ||x^ - x|| / ||x||, and the share of elements that became 0\n");
  for (const std::vector<RoundTrip>* trips : {&m, &v}) {
    for (const RoundTrip& trip : *trips) {
      if (!trip.format.is_quantized()) continue;
      std::printf("%-2s %-14s %8.4f %% %12.6f %%\n", trips == &m ? "m" : "v", label_of(trip.format).c_str(),
                  100 * trip.relative_error, 100 * trip.flushed);
    }
  }
}

struct Mix {
  std::string name;
  std::vector<double> errors;  // by kGroups
};

// Every mix of one byte a moment, by groups; the factor is that of plain E4M3 in groups of 128 over the mix.
void print_mixes(const std::vector<MomentState>& states, Rounding rounding) {
  std::vector<Mix> mixes;
  for (const int group : kGroups) {
    const std::vector<RoundTrip> m = round_trips(states, MomentUse::kFirst, group, rounding);
    const std::vector<RoundTrip> v = round_trips(states, MomentUse::kSecond, group, rounding);
    std::size_t index = 0;
    for (const RoundTrip& row : m) {
      for (const RoundTrip& column : v) {
        if (!row.format.is_quantized() || !column.format.is_quantized()) continue;
        if (group == kGroups[0])
          mixes.push_back({label_of(row.format) + " / " + label_of(column.format), {}});
        mixes[index++].errors.push_back(update_error(states, row, column));
      }
    }
  }
  const double plain = mixes.front().errors[kUsual];
  std::sort(mixes.begin(), mixes.end(),
            [](const Mix& a, const Mix& b) { return a.errors[kUsual] < b.errors[kUsual]; });
  std::printf("\nMSE of m / (sqrt v + 1e-8), times 1e4, by the elements of a group; m / v, %s\n%-30s",
              name_of_rounding(rounding), "");
  for (const int group : kGroups) std::printf(" %11d", group);
  std::printf(" %14s\n", "e4m3/e4m3 over");
  for (const Mix& mix : mixes) {
    std::printf("%-30s", mix.name.c_str());
    for (const double error : mix.errors) std::printf(" %11.5g", 1e4 * error);
    std::printf(" %14.2f\n", plain / mix.errors[kUsual]);
  }
}

// The other choices of a format, one at a time, groups of 128, to nearest.
void print_variants(const std::vector<MomentState>& states) {
  const auto m_of = [](MomentCode code) { return moment_format(code, true, 128, Rounding::kNearestEven); };
  struct Variant {
    const char* name;
    MomentFormat m, v;
  };
  std::vector<Variant> variants;
  for (const MomentCode v : {MomentCode::kE4M3, MomentCode::kLog255}) {
    Variant base{v == MomentCode::kE4M3 ? "e4m3+X / e4m3+X" : "e4m3+X / log255", m_of(MomentCode::kE4M3),
                 m_of(v)};
    variants.push_back(base);
    Variant bf16 = base;
    bf16.name = "  amax in BF16, rounded up";
    bf16.m.amax_format = bf16.v.amax_format = Format::kBf16;
    variants.push_back(bf16);
    Variant full = base;
    full.name = "  the paper's bound, 448 * 512";
    full.m.range_bound = full.v.range_bound = kE4M3FullRange;
    variants.push_back(full);
    Variant wide = base;
    wide.name = "  m's bound 4 * 448 * 512";
    wide.m.range_bound = 4 * kE4M3FullRange;
    variants.push_back(wide);
  }
  std::printf(
      "\nvariants, groups of 128, rounding to nearest: MSE times 1e4, bytes a parameter for both moments\n");
  constexpr std::int64_t kMany = std::int64_t{1} << 20;
  for (const Variant& variant : variants) {
    const double error = update_error(states, round_trip(states, variant.m, MomentUse::kFirst),
                                      round_trip(states, variant.v, MomentUse::kSecond));
    const auto bytes = static_cast<double>(variant.m.total_bytes(kMany) + variant.v.total_bytes(kMany));
    std::printf("%-32s %11.5g %8.4f\n", variant.name, 1e4 * error, bytes / static_cast<double>(kMany));
  }
}

struct Choice {
  MomentCode code;
  bool expand;
  int group;
};

// Calls print(format) after a row's name, for both roundings of every choice.
template <typename Print>
void print_rows(std::initializer_list<Choice> choices, Print print) {
  for (const Choice& choice : choices) {
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
      const MomentFormat format = moment_format(choice.code, choice.expand, choice.group, rounding);
      std::printf("\n%-13s %4d  %-9s", label_of(format).c_str(), choice.group,
                  rounding == Rounding::kStochastic ? "stoch." : "nearest");
      print(format);
      std::fflush(stdout);
    }
  }
  std::printf("\n");
}

void print_staleness_of_m() {
  std::printf(
      "\nelements whose gradients shrank tenfold, 3 and 6 time constants later, beta1 0.9: sum of |stored m| "
      "over"
      " sum of |FP32 m| (relative error)");
  print_rows({{MomentCode::kE4M3, true, 128},
              {MomentCode::kDe8, true, 128},
              {MomentCode::kSoftsign8, false, 32},
              {MomentCode::kSoftsign8, true, 128},
              {MomentCode::kOctave8, true, 128}},
             [](const MomentFormat& format) {
               const auto [three, six] = staleness_of_m(format, 0.9);
               std::printf("   %7.3f (%5.3f) -> %7.3f (%5.3f)", three.size, three.error, six.size, six.error);
             });
}

void print_staleness_of_v() {
  constexpr double kBetas[] = {0.95, 0.99, 0.999};
  std::printf("\nthe same for v: mean of stored v / FP32 v (geometric mean)\n%-29s", "");
  for (const double beta2 : kBetas) std::printf("   beta2 %-34g", beta2);
  print_rows({{MomentCode::kE4M3, false, 128},
              {MomentCode::kE4M3, true, 128},
              {MomentCode::kDe8Unsigned, false, 128},
              {MomentCode::kSqrt8, false, 32},
              {MomentCode::kLog255, true, 128},
              {MomentCode::kOctave8Unsigned, true, 128}},
             [&](const MomentFormat& format) {
               for (const double beta2 : kBetas) {
                 const auto [three, six] = staleness_of_v(format, beta2);
                 std::printf("   %7.3f (%7.3f) -> %7.3f (%7.3f)", three.mean, three.geometric_mean, six.mean,
                             six.geometric_mean);
               }
             });
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

void print_header(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) command += std::string(i > 0 ? " " : "") + argv[i];
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  std::printf("command   %s\nmachine   %s\nversions  g++ %s\ndate      %s\n", command.c_str(),
              processor().c_str(), __VERSION__, date);
}

int run(int argc, char** argv) {
  std::string checkpoint, only;
  bool known = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--checkpoint") == 0) {
      checkpoint = argv[i + 1];
    } else if (std::strcmp(argv[i], "--only") == 0) {
      only = argv[i + 1];
    } else {
      known = false;
    }
  }
  const bool wants_matrix = only.empty() || only == "matrix", wants_mixes = only.empty() || only == "mixes",
             wants_staleness = only.empty() || only == "staleness";
  const bool wants_states = wants_matrix || wants_mixes;
  if (!known || (checkpoint.empty() && wants_states) || (!wants_states && !wants_staleness)) {
    std::fprintf(stderr, "usage: %s --checkpoint FOLDER [--only matrix|mixes|staleness]\n", argv[0]);
    return 2;
  }
  constexpr Rounding kRoundings[] = {Rounding::kNearestEven, Rounding::kStochastic};
  print_header(argc, argv);
  if (wants_states) {
    const std::vector<MomentState> states = read_states(checkpoint);
    std::size_t elements = 0;
    for (const MomentState& state : states) elements += state.m.size();
    std::printf("states    %zu parameters of %s\n", elements, checkpoint.c_str());
    if (wants_matrix) {
      for (const Rounding rounding : kRoundings) print_matrix(states, rounding);
      print_variants(states);
    }
    if (wants_mixes) {
      for (const Rounding rounding : kRoundings) print_mixes(states, rounding);
    }
  }
  if (wants_staleness) {
    print_staleness_of_m();
    print_staleness_of_v();
  }
  return 0;
}

}  // namespace
}  // namespace coat::bench

int main(int argc, char** argv) {
  try {
    return coat::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}
