#include "worker/protocol/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coat::protocol {
namespace {

using testing::ElementsAre;

TEST(LaunchArguments, LeavesOutWhatIsNotAskedFor) {
  Launch launch;
  launch.spec_path = "/a b/spec.json";
  EXPECT_THAT(launch_arguments(launch), ElementsAre("--spec", "/a b/spec.json", "--device", "cpu:0"));
}

TEST(LaunchArguments, NamesEveryOption) {
  const Launch launch{.spec_path = "s.json",
                      .checkpoint_dir = "/c",
                      .device = "cuda:3",
                      .threads = 4,
                      .memory_bytes = 1'000'000'000'000,
                      .resume = true,
                      .epoch = 7,
                      .event_fd = 5,
                      .estimate = true};
  EXPECT_THAT(launch_arguments(launch),
              ElementsAre("--spec", "s.json", "--checkpoint-dir", "/c", "--device", "cuda:3", "--threads",
                          "4", "--memory-bytes", "1000000000000", "--resume", "--epoch", "7", "--event-fd",
                          "5", "--estimate"));
}

}  // namespace
}  // namespace coat::protocol
