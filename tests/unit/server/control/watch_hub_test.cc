#include "server/control/watch_hub.h"

#include <vector>

#include <gtest/gtest.h>

namespace coat::control {
namespace {

class FakeSink : public WatchSink {
 public:
  bool offer(std::shared_ptr<const v1::WatchJobsResponse> response) override {
    if (seen.size() == room) return false;
    seen.push_back(response->event().sequence());
    return true;
  }
  void end(std::optional<ServiceError> why) override {
    ++ends;
    error = std::move(why);
  }
  std::size_t room = 100;
  std::vector<std::int64_t> seen;
  int ends = 0;
  std::optional<ServiceError> error;
};

std::shared_ptr<const v1::WatchJobsResponse> event(std::int64_t sequence) {
  auto response = std::make_shared<v1::WatchJobsResponse>();
  response->mutable_event()->set_sequence(sequence);
  return response;
}

TEST(WatchHub, EachGetsWhatItAskedForAndNothingTwice) {
  WatchHub hub;
  const auto all = std::make_shared<FakeSink>();
  const auto one = std::make_shared<FakeSink>();
  hub.add("", 5, all);
  hub.add("jobs/a", 0, one);
  hub.publish("jobs/b", event(5), false);
  hub.publish("jobs/a", event(6), false);
  hub.publish("jobs/a", event(6), false);
  hub.publish("jobs/b", event(7), false);
  EXPECT_EQ(all->seen, (std::vector<std::int64_t>{6, 7}));
  EXPECT_EQ(one->seen, (std::vector<std::int64_t>{6}));
  EXPECT_TRUE(hub.watched("jobs/b"));
}

TEST(WatchHub, AJobsWatchEndsAfterItsLastEvent) {
  WatchHub hub;
  const auto all = std::make_shared<FakeSink>();
  const auto one = std::make_shared<FakeSink>();
  hub.add("", 0, all);
  hub.add("jobs/a", 0, one);
  hub.publish("jobs/a", event(1), true);
  EXPECT_EQ(one->ends, 1);
  EXPECT_FALSE(one->error);
  EXPECT_EQ(all->ends, 0);
  EXPECT_EQ(hub.size(), 1U);
}

TEST(WatchHub, AFullSinkIsEndedWithWhereToGoOn) {
  WatchHub hub;
  const auto slow = std::make_shared<FakeSink>();
  slow->room = 2;
  hub.add("", 0, slow);
  for (std::int64_t sequence = 1; sequence <= 5; ++sequence) hub.publish("jobs/a", event(sequence), false);
  EXPECT_EQ(slow->ends, 1);
  ASSERT_TRUE(slow->error);
  EXPECT_EQ(slow->error->code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(slow->error->metadata.at("after_sequence"), "2");
  EXPECT_EQ(hub.size(), 0U);
  EXPECT_FALSE(hub.watched("jobs/a"));
}

TEST(WatchHub, EndAllAndRemove) {
  WatchHub hub;
  const auto gone = std::make_shared<FakeSink>();
  const auto left = std::make_shared<FakeSink>();
  hub.remove(hub.add("", 0, gone));
  hub.add("", 0, left);
  hub.end_all(unavailable("SHUTTING_DOWN", "bye"));
  EXPECT_EQ(gone->ends, 0);
  EXPECT_EQ(left->ends, 1);
  EXPECT_EQ(left->error->code, grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace coat::control
