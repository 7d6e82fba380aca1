#include "server/fleet/worker_book.h"

#include <gtest/gtest.h>

namespace coat::fleet {
namespace {

using std::chrono::seconds;

class SilentLink : public WorkerLink {
 public:
  void send(v1::ControllerMessage) override {}
  void close(const ServiceError&) override {}
};

class WorkerBookTest : public ::testing::Test {
 protected:
  static v1::Register hello(std::int64_t incarnation, const std::string& id = "w") {
    v1::Register message;
    message.set_worker_id(id);
    message.set_incarnation(incarnation);
    message.add_devices()->set_index(0);
    return message;
  }
  Result<WorkerBook::Registration> enter(std::int64_t incarnation) {
    return book_.enter(hello(incarnation), std::make_shared<SilentLink>(), now_, SystemTime(seconds(1)));
  }

  SteadyTime now_{seconds(1000)};
  WorkerBook book_{{seconds(5), seconds(15), seconds(30)}};
};

TEST_F(WorkerBookTest, LostAfterTheLeaseAndFencedOnceAfterThat) {
  ASSERT_TRUE(enter(1).ok());
  now_ += seconds(14);
  EXPECT_TRUE(book_.expire_leases(now_).empty());
  EXPECT_EQ(book_.next_deadline(), now_ + seconds(1));
  now_ += seconds(1);
  EXPECT_EQ(book_.expire_leases(now_).size(), 1U);
  EXPECT_TRUE(book_.expire_leases(now_).empty()) << "once";
  EXPECT_EQ(book_.find("workers/w")->worker.state(), v1::Worker::LOST);
  EXPECT_TRUE(book_.due_for_fencing(now_ + seconds(29)).empty());
  EXPECT_EQ(book_.due_for_fencing(now_ + seconds(30)).size(), 1U);
  EXPECT_TRUE(book_.due_for_fencing(now_ + seconds(31)).empty()) << "once";
  EXPECT_FALSE(book_.next_deadline());
}

TEST_F(WorkerBookTest, HearingKeepsTheLease) {
  ASSERT_TRUE(enter(1).ok());
  for (int i = 0; i < 10; ++i) {
    now_ += seconds(10);
    book_.hear(*book_.find("workers/w"), now_, SystemTime{});
    EXPECT_TRUE(book_.expire_leases(now_).empty());
  }
}

TEST_F(WorkerBookTest, ADisconnectedWorkerKeepsItsLeaseToo) {
  ASSERT_TRUE(enter(1).ok());
  book_.leave(*book_.find("workers/w"));
  EXPECT_FALSE(book_.find("workers/w")->connected());
  EXPECT_TRUE(book_.expire_leases(now_ + seconds(14)).empty());
  EXPECT_EQ(book_.expire_leases(now_ + seconds(15)).size(), 1U);
}

TEST_F(WorkerBookTest, ANewerIncarnationTakesOverAndAnOlderOneIsRefused) {
  ASSERT_TRUE(enter(5).ok());
  const auto taken = enter(6);
  ASSERT_TRUE(taken.ok());
  EXPECT_NE(taken.value().replaced, nullptr);
  const auto same = enter(6);
  ASSERT_TRUE(same.ok()) << "the same daemon dials again";
  const auto older = enter(5);
  ASSERT_FALSE(older.ok());
  EXPECT_EQ(older.error().reason, "OLDER_INCARNATION");
  EXPECT_EQ(book_.find("workers/w")->worker.incarnation(), 6);
}

TEST_F(WorkerBookTest, AnOlderIncarnationMayEnterOnceTheNewerOneIsLost) {
  ASSERT_TRUE(enter(5).ok());
  book_.expire_leases(now_ + seconds(15));
  const auto older = enter(1);
  ASSERT_TRUE(older.ok());
  EXPECT_TRUE(older.value().was_lost);
  EXPECT_EQ(book_.find("workers/w")->worker.state(), v1::Worker::READY);
}

TEST_F(WorkerBookTest, NoLeaseExpiresBecauseTheControllerWasDown) {
  store::WorkerRow row;
  row.worker.set_name("workers/w");
  row.worker.set_state(v1::Worker::LOST);
  book_.restore({row}, now_);
  EXPECT_EQ(book_.find("workers/w")->worker.state(), v1::Worker::READY);
  EXPECT_TRUE(book_.expire_leases(now_ + seconds(14)).empty());
  EXPECT_EQ(book_.expire_leases(now_ + seconds(15)).size(), 1U) << "a whole lease counts anew";
  EXPECT_TRUE(book_.due_for_fencing(now_ + seconds(44)).empty());
  EXPECT_EQ(book_.due_for_fencing(now_ + seconds(45)).size(), 1U);
}

TEST_F(WorkerBookTest, DevicesChangeOnlyWhenTheyDo) {
  ASSERT_TRUE(enter(1).ok());
  v1::Heartbeat heartbeat;
  WorkerEntry& entry = *book_.find("workers/w");
  EXPECT_FALSE(book_.take_devices(entry, heartbeat.devices()))
      << "a heartbeat without devices says nothing of them";
  heartbeat.add_devices()->set_index(0);
  EXPECT_FALSE(book_.take_devices(entry, heartbeat.devices()));
  heartbeat.mutable_devices(0)->set_health(v1::Device::FAULTED);
  EXPECT_TRUE(book_.take_devices(entry, heartbeat.devices()));
  EXPECT_EQ(entry.worker.devices(0).health(), v1::Device::FAULTED);
}

}  // namespace
}  // namespace coat::fleet
