// Watches, logs and metric samples.
#include <atomic>
#include <cmath>
#include <limits>

#include "server/api/watch_session.h"
#include "tests/unit/server/api/fake_worker.h"
#include "tests/unit/server/api/service_fixture.h"

namespace coat::testing {
namespace {

class StreamsTest : public ServiceTest {
 protected:
  struct Watched {
    std::vector<v1::WatchJobsResponse> responses;
    grpc::Status status;
    std::vector<std::int64_t> sequences() const {
      std::vector<std::int64_t> found;
      for (const auto& response : responses) {
        if (response.has_event()) found.push_back(response.event().sequence());
      }
      return found;
    }
  };

  static v1::WatchJobsRequest watch_request(const std::string& job, std::int64_t after = 0) {
    v1::WatchJobsRequest request;
    request.set_job(job);
    request.set_after_sequence(after);
    return request;
  }
  // To the stream's end, or until `enough` says so.
  Watched watch(
      const v1::WatchJobsRequest& request,
      const std::function<bool(const Watched&)>& enough = [](const Watched&) { return false; }) {
    Context context;
    const auto reader = jobs_->WatchJobs(&context, request);
    Watched watched;
    v1::WatchJobsResponse response;
    while (reader->Read(&response)) {
      watched.responses.push_back(response);
      if (enough(watched)) context.TryCancel();
    }
    watched.status = reader->Finish();
    return watched;
  }
  // A job that ran and ended, with 18 bytes of log.
  std::string ended_job(FakeWorker& worker) {
    const std::string name = submit().name();
    const v1::Assign assign = worker.next_assign();
    worker.run(assign);
    worker.send_chunk(assign, v1::StreamChunk::LOG, 0, "line one\nline two\n");
    worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 18);
    return name;
  }
  struct Log {
    std::string data;
    bool end = false;
    std::int64_t end_offset = -1;
    grpc::Status status;
  };
  Log logs(const std::string& attempt, std::int64_t offset, bool follow,
           const std::function<void(const Log&)>& each = {}) {
    v1::StreamLogsRequest request;
    request.set_attempt(attempt);
    request.set_offset(offset);
    request.set_follow(follow);
    Context context;
    const auto reader = jobs_->StreamLogs(&context, request);
    Log log;
    v1::StreamLogsResponse response;
    while (reader->Read(&response)) {
      EXPECT_LE(response.data().size(), 256U << 10);
      if (!response.end()) {
        EXPECT_EQ(response.offset(), offset + static_cast<std::int64_t>(log.data.size()));
      }
      log.data += response.data();
      if (response.end()) {
        log.end = true;
        log.end_offset = response.offset();
      }
      if (each) each(log);
    }
    log.status = reader->Finish();
    return log;
  }
};

TEST_F(StreamsTest, AWatchOfAJobTellsEveryEventOnceAndEnds) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = ended_job(worker);
  const Watched watched = watch(watch_request(name));
  EXPECT_TRUE(watched.status.ok()) << watched.status.error_message();
  std::vector<std::string> verbs;
  for (const auto& response : watched.responses) {
    if (response.event().object() == name) verbs.push_back(response.event().verb());
    EXPECT_EQ(response.job().name(), name);
    EXPECT_EQ(response.has_attempt(), response.event().object() != name);
  }
  EXPECT_EQ(verbs, (std::vector<std::string>{"created", "evaluated", "started", "succeeded"}));
  const auto sequences = watched.sequences();
  EXPECT_TRUE(std::is_sorted(sequences.begin(), sequences.end()));
  EXPECT_EQ(sequences.back(), get(name).last_sequence());
}

TEST_F(StreamsTest, AWatchResumesWithoutGapOrRepeat) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = ended_job(worker);
  const auto all = watch(watch_request(name)).sequences();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Watched rest = watch(watch_request(name, all[i]));
    EXPECT_TRUE(rest.status.ok());
    EXPECT_EQ(rest.sequences(),
              std::vector<std::int64_t>(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end()));
  }
}

TEST_F(StreamsTest, TwoLiveWatchersSeeTheSame) {
  const std::string name = submit().name();
  std::atomic<int> started{0};
  Watched seen[2];
  std::vector<std::thread> watchers;
  for (Watched& each : seen) {
    watchers.emplace_back([&] {
      each = watch(watch_request(name), [&](const Watched& watched) {
        if (watched.responses.size() == 1) ++started;
        return false;
      });
    });
  }
  ASSERT_TRUE(eventually([&] { return started == 2; }));
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  for (std::thread& watcher : watchers) watcher.join();
  EXPECT_TRUE(seen[0].status.ok());
  EXPECT_EQ(seen[0].sequences(), seen[1].sequences());
  EXPECT_EQ(seen[0].sequences(), watch(watch_request(name)).sequences());
  EXPECT_EQ(seen[0].responses.back().job().state(), v1::Job::SUCCEEDED);
}

TEST_F(StreamsTest, AWatchOfAllJobsGoesOnLive) {
  const std::string first = submit(small_spec("one")).name();
  std::string second;
  const Watched watched = watch(watch_request(""), [&](const Watched& so_far) {
    if (so_far.sequences().size() == 1 && second.empty()) second = submit(small_spec("two")).name();
    return so_far.sequences().size() == 2;
  });
  ASSERT_EQ(watched.sequences().size(), 2U);
  EXPECT_EQ(watched.responses.front().job().name(), first);
  EXPECT_EQ(watched.responses.back().job().name(), second);
}

TEST_F(StreamsTest, ProgressReachesAWatcherAtMostOnceASecond) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  const auto report = [&](std::int64_t step) {
    v1::AttemptReport progress = FakeWorker::report(assign, v1::Attempt::RUNNING, 0);
    progress.mutable_progress()->set_step(step);
    worker.send(progress);
    EXPECT_TRUE(eventually([&] { return get(name).progress().step() == step; }));
  };
  std::vector<std::int64_t> steps;
  std::thread driver;
  const std::int64_t last = get(name).last_sequence();
  watch(watch_request(name, last), [&](const Watched& watched) {
    const v1::WatchJobsResponse& newest = watched.responses.back();
    EXPECT_FALSE(newest.has_event());
    steps.push_back(newest.job().progress().step());
    if (steps.size() == 1) {
      driver = std::thread([&] {
        report(1);
        for (std::int64_t step = 2; step <= 20; ++step) report(step);
        clock_.advance(std::chrono::milliseconds(1100));
      });
    }
    return steps.back() == 20;
  });
  driver.join();
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 20}))
      << "the snapshot, the first, and what came of the rest";
}

TEST_F(StreamsTest, WatchesThatCannotBe) {
  submit();
  EXPECT_EQ(watch(watch_request("jobs/none-12345")).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(watch(watch_request("", -1)).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(watch(watch_request("No Name")).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status future = watch(watch_request("", 1000)).status;
  EXPECT_EQ(future.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(from_status(future).reason, "SEQUENCE_IN_FUTURE");
}

class PrunedTest : public StreamsTest {
 protected:
  PrunedTest() {
    options_.keep_events = 3;
    restart();
  }
};

TEST_F(PrunedTest, AnEventThatIsGoneIsSaidAndNeverSkipped) {
  const std::string old = submit().name();
  cancel(old);
  for (int i = 0; i < 6; ++i) submit();
  clock_.advance(std::chrono::minutes(11));
  grpc::Status status;
  ASSERT_TRUE(eventually([&] {
    status = watch(watch_request("", 1), [](const Watched&) { return true; }).status;
    return status.error_code() == grpc::StatusCode::OUT_OF_RANGE;
  }));
  const ServiceError error = from_status(status);
  EXPECT_EQ(error.reason, "EVENTS_PRUNED");
  const std::int64_t oldest = std::stoll(error.metadata.at("oldest_sequence"));
  EXPECT_EQ(from_status(watch(watch_request(old)).status).reason, "EVENTS_PRUNED");
  EXPECT_EQ(watch(watch_request("", oldest - 1), [](const Watched& w) { return w.sequences().size() == 3; })
                .sequences()
                .size(),
            3U);
}

// How much a transport holds by itself is its own affair, so this session has none: nothing ever leaves its
// queue.
TEST_F(StreamsTest, AWatchersQueueIsBoundedAndProgressGivesWayFirst) {
  const auto session =
      std::make_shared<api::WatchSession>(*controller_, api::CallMeter(*metrics_, "test"), "", 0, 16);
  const auto progress = std::make_shared<v1::WatchJobsResponse>();
  const auto event = std::make_shared<v1::WatchJobsResponse>();
  event->mutable_event()->set_sequence(1);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(session->offer(progress)) << "left out, not an end";
  EXPECT_EQ(session->queued(), 4U);
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(session->offer(event));
  EXPECT_EQ(session->queued(), 16U);
  EXPECT_FALSE(session->offer(event)) << "the hub ends it then with RESOURCE_EXHAUSTED";
  ServiceError slow;
  slow.code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  session->end(slow);
  EXPECT_EQ(session->queued(), 0U) << "its memory is given back at once";
}

TEST_F(StreamsTest, ALogToItsLastByte) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = ended_job(worker);
  for (const std::string& attempt : {name + "/attempts/1", name, name.substr(5)}) {
    const Log log = logs(attempt, 0, true);
    EXPECT_TRUE(log.status.ok());
    EXPECT_EQ(log.data, "line one\nline two\n");
    EXPECT_TRUE(log.end);
    EXPECT_EQ(log.end_offset, 18);
  }
  EXPECT_EQ(logs(name, 9, false).data, "line two\n");
  EXPECT_TRUE(logs(name, 18, false).end);
  EXPECT_EQ(from_status(logs(name, 19, false).status).reason, "OFFSET_PAST_END");
  EXPECT_EQ(logs(name, -1, false).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(logs(name + "/attempts/2", 0, false).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(logs("jobs/none-12345", 0, false).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(StreamsTest, ALogOfAJobThatHasNotStarted) {
  EXPECT_EQ(from_status(logs(submit().name(), 0, true).status).reason, "NO_ATTEMPT");
}

TEST_F(StreamsTest, AFollowedLogEndsOnlyWhenItsLastByteIsThere) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  worker.send_chunk(assign, v1::StreamChunk::LOG, 0, "one");
  int turn = 0;
  const Log log = logs(name, 0, true, [&](const Log& so_far) {
    if (so_far.data == "one" && turn++ == 0) {
      // The end is reported before the rest of the bytes has come.
      worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 6);
      worker.send_chunk(assign, v1::StreamChunk::LOG, 3, "two");
    }
  });
  EXPECT_TRUE(log.status.ok());
  EXPECT_EQ(log.data, "onetwo");
  EXPECT_EQ(log.end_offset, 6);
}

TEST_F(StreamsTest, ALogWhoseWorkerIsLostEndsWithWhatThereIs) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  worker.send_chunk(assign, v1::StreamChunk::LOG, 0, "one");
  int turn = 0;
  const Log log = logs(name, 0, true, [&](const Log&) {
    if (turn++ > 0) return;
    worker.finish(assign, v1::Attempt::FAILED, v1::ExitStatus::BAD_SPEC, 6);
    clock_.advance(std::chrono::seconds(16));
  });
  EXPECT_TRUE(log.status.ok());
  EXPECT_EQ(log.data, "one");
  EXPECT_EQ(log.end_offset, 3);
}

TEST_F(StreamsTest, ALongLogComesInPieces) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  std::string all;
  for (int i = 0; i < 6; ++i) {
    const std::string piece(200000, static_cast<char>('a' + i));
    worker.send_chunk(assign, v1::StreamChunk::LOG, static_cast<std::int64_t>(all.size()), piece);
    all += piece;
  }
  worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, static_cast<std::int64_t>(all.size()));
  const Log log = logs(name, 0, true);
  EXPECT_TRUE(log.data == all) << log.data.size() << " bytes of " << all.size();
  EXPECT_TRUE(log.end);
}

TEST_F(StreamsTest, MetricSamplesAfterAStepWithNumbersThatAreNotFinite) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  const std::string lines =
      "{\"step\":\"1\",\"loss\":5.5}\n{\"step\":\"2\",\"loss\":\"NaN\"}\nnot a sample\n"
      "{\"step\":\"3\",\"loss\":\"Infinity\",\"grad_norm\":\"-Infinity\"}\n";
  // Cut within a line.
  worker.send_chunk(assign, v1::StreamChunk::METRICS, 0, lines.substr(0, 35));
  worker.send_chunk(assign, v1::StreamChunk::METRICS, 35, lines.substr(35));
  worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE, 0,
                static_cast<std::int64_t>(lines.size()));
  v1::StreamMetricsRequest request;
  request.set_attempt(name);
  request.set_follow(true);
  for (const std::int64_t after : {0, 1, 3}) {
    request.set_after_step(after);
    Context context;
    const auto reader = jobs_->StreamMetrics(&context, request);
    std::vector<v1::MetricSample> samples;
    v1::StreamMetricsResponse response;
    bool end = false;
    while (reader->Read(&response)) {
      samples.insert(samples.end(), response.samples().begin(), response.samples().end());
      end = response.end();
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_TRUE(end);
    ASSERT_EQ(samples.size(), static_cast<std::size_t>(3 - after));
    if (after == 0) {
      EXPECT_EQ(samples[0].loss(), 5.5);
      EXPECT_TRUE(std::isnan(samples[1].loss()));
      EXPECT_EQ(samples[2].loss(), std::numeric_limits<double>::infinity());
      EXPECT_EQ(samples[2].grad_norm(), -std::numeric_limits<double>::infinity());
    }
  }
}

TEST_F(StreamsTest, StopEndsEveryStreamWithUnavailable) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  worker.run(assign);
  worker.send_chunk(assign, v1::StreamChunk::LOG, 0, "one");
  std::atomic<int> open{0};
  grpc::Status watched;
  grpc::Status followed;
  std::thread watcher([&] {
    watched = watch(watch_request(name), [&](const Watched& w) {
                if (w.responses.size() == 1) ++open;
                return false;
              }).status;
  });
  std::thread follower([&] { followed = logs(name, 0, true, [&](const Log&) { ++open; }).status; });
  ASSERT_TRUE(eventually([&] { return open == 2; }));
  controller_->stop();
  watcher.join();
  follower.join();
  EXPECT_EQ(watched.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(followed.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace coat::testing
