#include "server/control/journal.h"

#include <deque>

#include <gtest/gtest.h>

namespace coat::control {
namespace {

// Commits when the test says so.
class SlowStore : public store::Store {
 public:
  store::LoadedState load() override { return {}; }
  void commit(store::Batch batch, Done done) override {
    queue.push_back({std::move(batch), std::move(done)});
  }
  std::optional<store::JobRow> find_job(const std::string&) override { return std::nullopt; }
  std::vector<store::AttemptRow> find_attempts(const std::string&) override { return {}; }
  store::JobPage list_jobs(const store::JobQuery&) override { return {}; }
  std::vector<store::EventRow> list_events(const store::EventQuery&) override { return {}; }

  void finish(const std::string& error = "") {
    const Done done = std::move(queue.front().second);
    queue.pop_front();
    done(error);
  }
  std::deque<std::pair<store::Batch, Done>> queue;
};

class JournalTest : public ::testing::Test {
 protected:
  void add_event() {
    store::EventRow row;
    row.event.set_sequence(journal_.next_sequence());
    journal_.batch().events.push_back(row);
  }
  void note(const std::string& what) {
    journal_.after([this, what](bool durable) { log_.push_back(what + (durable ? "" : " lost")); });
  }

  SlowStore store_;
  std::vector<std::string> log_;
  std::vector<std::string> failures_;
  Journal journal_{store_,
                   [](std::function<void()> task) {
                     task();
                     return true;
                   },
                   [this](const std::string& error) { failures_.push_back(error); }};
};

TEST_F(JournalTest, NothingIsSaidBeforeItIsDurable) {
  journal_.restore(10, 5);
  add_event();
  note("a");
  journal_.flush();
  EXPECT_TRUE(log_.empty());
  EXPECT_EQ(journal_.durable_sequence(), 10);
  store_.finish();
  EXPECT_EQ(log_, std::vector<std::string>{"a"});
  EXPECT_EQ(journal_.durable_sequence(), 11);
}

TEST_F(JournalTest, WithoutAChangeAnswersWaitOnlyForWhatIsUnderWay) {
  note("idle");
  journal_.flush();
  EXPECT_EQ(log_, std::vector<std::string>{"idle"});
  add_event();
  note("write");
  journal_.flush();
  note("read");
  journal_.flush();
  EXPECT_EQ(log_.size(), 1U);
  store_.finish();
  EXPECT_EQ(log_, (std::vector<std::string>{"idle", "write"}));
  store_.finish();
  EXPECT_EQ(log_, (std::vector<std::string>{"idle", "write", "read"}));
}

TEST_F(JournalTest, AFailedCommitIsToldOnceAndNothingIsWrittenAfterIt) {
  add_event();
  note("a");
  journal_.flush();
  add_event();
  note("b");
  journal_.flush();
  store_.finish("disk full");
  EXPECT_EQ(log_, std::vector<std::string>{"a lost"});
  EXPECT_EQ(failures_, std::vector<std::string>{"disk full"});
  store_.finish();
  EXPECT_EQ(log_.back(), "b lost") << "it may be on disk, but what it builds on is not";
  add_event();
  note("c");
  journal_.flush();
  EXPECT_TRUE(store_.queue.empty());
  EXPECT_EQ(log_.back(), "c lost");
  EXPECT_EQ(failures_.size(), 1U);
  EXPECT_EQ(journal_.durable_sequence(), 0);
}

TEST_F(JournalTest, EpochsAndSequencesGoOnFromTheStore) {
  journal_.restore(10, 5);
  EXPECT_EQ(journal_.next_epoch(), 6);
  EXPECT_EQ(journal_.batch().epoch, 6);
  EXPECT_EQ(journal_.next_sequence(), 11);
}

}  // namespace
}  // namespace coat::control
