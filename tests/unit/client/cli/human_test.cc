#include "client/cli/human.h"

#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "client/cli/table.h"

namespace coat::cli {
namespace {

using std::chrono::milliseconds;

TEST(Human, Durations) {
  EXPECT_EQ(duration_text(0), "0.0s");
  EXPECT_EQ(duration_text(0.42), "0.4s");
  EXPECT_EQ(duration_text(9.96), "10s");
  EXPECT_EQ(duration_text(59.6), "1m");
  EXPECT_EQ(duration_text(200), "3m 20s");
  EXPECT_EQ(duration_text(7500), "2h 5m");
  EXPECT_EQ(duration_text(86400 * 3 + 3600 * 4), "3d 4h");
  EXPECT_EQ(duration_text(std::nan("")), "NaN");
}

TEST(Human, CountsAndShares) {
  EXPECT_EQ(count_text(950), "950");
  EXPECT_EQ(count_text(3412), "3.4k");
  EXPECT_EQ(count_text(999.7), "1.0k");
  EXPECT_EQ(count_text(3.3e6), "3.3M");
  EXPECT_EQ(count_text(HUGE_VAL), "Infinity");
  EXPECT_EQ(thousands_text(0), "0");
  EXPECT_EQ(thousands_text(999), "999");
  EXPECT_EQ(thousands_text(204800), "204,800");
  EXPECT_EQ(thousands_text(-1234567), "-1,234,567");
  EXPECT_EQ(percent_text(0.0263), "2.63 %");
  EXPECT_EQ(percent_text(0.0001), "0.010 %");
  EXPECT_EQ(percent_text(1e-9), "<0.001 %");
  EXPECT_EQ(percent_text(0), "0 %");
  EXPECT_EQ(factor_text(100, 390), "3.90x less");
  EXPECT_EQ(factor_text(120, 100), "1.20x more");
  EXPECT_EQ(factor_text(100, 100), "same");
  EXPECT_EQ(factor_text(0, 100), "");
}

TEST(Human, DurationsAreReadStrictly) {
  EXPECT_EQ(parse_duration("90"), milliseconds(90000));
  EXPECT_EQ(parse_duration("90s"), milliseconds(90000));
  EXPECT_EQ(parse_duration("10m"), milliseconds(600000));
  EXPECT_EQ(parse_duration("1h30m"), milliseconds(5400000));
  EXPECT_EQ(parse_duration("1.5h"), milliseconds(5400000));
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  for (const char* bad : {"", "m", "10 m", "-1s", "1d", "1h30", "ten", "1e99s", "nan", "1s "}) {
    EXPECT_EQ(parse_duration(bad), std::nullopt) << bad;
  }
}

TEST(Table, AlignsByCharactersAndNotByBytes) {
  Table table({{"NAME"}, {"N", true}, {"NOTE"}});
  table.add({"gr\xc3\xbc\xc3\x9f", "7", "x\ny"});
  table.add({"b", "1234", ""});
  std::ostringstream out;
  table.print(out, true, 1);
  EXPECT_EQ(out.str(), " NAME     N  NOTE\n gr\xc3\xbc\xc3\x9f     7  x y\n b     1234\n");
}

TEST(Table, CuttingKeepsCharactersWhole) {
  EXPECT_EQ(cut_to_width("abcdef", 6), "abcdef");
  EXPECT_EQ(cut_to_width("abcdefg", 6), "abc...");
  EXPECT_EQ(cut_to_width("\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc", 4), "\xc3\xbc...");
  EXPECT_EQ(cut_to_width("abcdef", 2), "..");
}

}  // namespace
}  // namespace coat::cli
