#include "tests/unit/server/api/fake_worker.h"
#include "tests/unit/server/api/service_fixture.h"

namespace coat::testing {
namespace {

using std::chrono::seconds;
using Message = v1::ControllerMessage;

class WorkerServiceTest : public ServiceTest {
 protected:
  // A job that runs on `worker`.
  v1::Assign running(FakeWorker& worker, const v1::JobSpec& spec = small_spec()) {
    submit(spec);
    const v1::Assign assign = worker.next_assign();
    worker.run(assign);
    return assign;
  }
  static std::string job_of(const v1::Assign& assign) {
    return assign.attempt().substr(0, assign.attempt().find("/attempts"));
  }
  v1::Attempt attempt(const std::string& job, std::size_t index) { return attempts(job).at(index); }
  v1::Worker worker(const std::string& name) {
    v1::ListWorkersResponse response;
    Context context;
    EXPECT_TRUE(jobs_->ListWorkers(&context, {}, &response).ok());
    for (const v1::Worker& each : response.workers()) {
      if (each.name() == name) return each;
    }
    return {};
  }
  // Time passes, and the controller hears of the worker before and after.
  ::testing::AssertionResult lives_through(FakeWorker& from, const std::string& name, seconds time) {
    clock_.advance(time);
    from.heartbeat();
    const auto now = std::chrono::duration_cast<seconds>(clock_.system_now().time_since_epoch()).count();
    if (eventually([&] { return worker(name).heartbeat_time().seconds() >= now; }))
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << worker(name).ShortDebugString();
  }
  ::testing::AssertionResult attempt_reaches(const std::string& job, std::size_t index,
                                             v1::Attempt::State state) {
    if (eventually([&] { return attempts(job).size() > index && attempt(job, index).state() == state; })) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << get(job).ShortDebugString();
  }
};

TEST_F(WorkerServiceTest, FromSubmitToSuccess) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  EXPECT_EQ(assign.attempt(), name + "/attempts/1");
  EXPECT_GT(assign.epoch(), 0);
  EXPECT_FALSE(assign.resume());
  EXPECT_EQ(assign.spec().training().steps(), 10);
  EXPECT_EQ(get(name).state(), v1::Job::RUNNING);
  EXPECT_EQ(this->worker("workers/w").attempts(0), assign.attempt());
  worker.run(assign);
  EXPECT_EQ(attempt(name, 0).state(), v1::Attempt::RUNNING);
  EXPECT_TRUE(get(name).has_start_time());
  v1::AttemptReport progress = FakeWorker::report(assign, v1::Attempt::RUNNING, 0);
  progress.mutable_progress()->set_step(5);
  worker.send(progress);
  EXPECT_TRUE(eventually([&] { return get(name).progress().step() == 5; }));
  worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  EXPECT_EQ(get(name).state(), v1::Job::SUCCEEDED);
  EXPECT_EQ(get(name).exit().reason(), v1::ExitStatus::DONE);
  EXPECT_EQ(this->worker("workers/w").attempts_size(), 0);
}

TEST_F(WorkerServiceTest, RegisterComesFirstAndOnce) {
  FakeWorker early(channel_);
  early.heartbeat();
  EXPECT_EQ(early.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  FakeWorker twice(channel_);
  twice.enter(FakeWorker::hello());
  twice.send(FakeWorker::hello());
  EXPECT_EQ(twice.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(WorkerServiceTest, BadRegistrationsAreRefused) {
  FakeWorker unnamed(channel_);
  unnamed.send(FakeWorker::hello("Not A Name"));
  const grpc::Status status = unnamed.status();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(from_status(status).violations.at(0).field, "register.worker_id");
  v1::Register doubled = FakeWorker::hello("w", 1, 2);
  doubled.mutable_devices(1)->set_index(0);
  FakeWorker twin(channel_);
  twin.send(doubled);
  EXPECT_EQ(from_status(twin.status()).violations.at(0).field, "register.devices");
}

TEST_F(WorkerServiceTest, TheNewerIncarnationTakesOverAndTheOlderIsRefused) {
  FakeWorker first(channel_);
  first.enter(FakeWorker::hello("w", 3));
  FakeWorker second(channel_);
  second.enter(FakeWorker::hello("w", 4));
  EXPECT_EQ(first.status().error_code(), grpc::StatusCode::ABORTED);
  FakeWorker third(channel_);
  third.send(FakeWorker::hello("w", 3));
  EXPECT_EQ(from_status(third.status()).reason, "OLDER_INCARNATION");
  second.heartbeat();
  EXPECT_EQ(this->worker("workers/w").incarnation(), 4);
}

TEST_F(WorkerServiceTest, JobsQueueForADeviceAndStartInOrder) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign first = running(worker);
  const std::string second = submit(small_spec("second")).name();
  const std::string third = submit(small_spec("third")).name();
  EXPECT_TRUE(waits_for(second, v1::PendingStatus::DEVICES_BUSY));
  EXPECT_TRUE(eventually([&] { return get(third).pending_status().queue_position() == 2; }));
  worker.finish(first, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  EXPECT_EQ(job_of(worker.next_assign()), second);
  EXPECT_TRUE(waits_for(third, v1::PendingStatus::DEVICES_BUSY));
}

TEST_F(WorkerServiceTest, AJobThatCannotFitSaysSoWithTheNumbers) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), std::int64_t{2} << 30);
  const std::string name = submit().name();
  EXPECT_TRUE(waits_for(name, v1::PendingStatus::NEVER_FITS));
  EXPECT_EQ(get(name).pending_status().details().at("bytes_wanted"), std::to_string(std::int64_t{2} << 30));
}

TEST_F(WorkerServiceTest, ABadSpecThatAWorkerFindsFailsTheJob) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), -1);
  const std::string name = submit().name();
  EXPECT_TRUE(waits_for(name, v1::PendingStatus::EVALUATING));
  const auto query = worker.next(Message::kEstimate);
  ASSERT_TRUE(query);
  v1::EstimateResult result;
  result.set_query_id(query->estimate().query_id());
  result.mutable_error()->set_reason(v1::ExitStatus::DATA_ERROR);
  result.mutable_error()->set_field("data.path");
  worker.send(result);
  EXPECT_TRUE(reaches(name, v1::Job::FAILED));
  EXPECT_EQ(get(name).exit().field(), "data.path");
  EXPECT_EQ(get(name).attempt_count(), 0);
}

TEST_F(WorkerServiceTest, AnEstimateThatFailsIsAskedForAgainAndThenGivenUp) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello(), -1);
  const std::string name = submit().name();
  for (int i = 0; i < 3; ++i) {
    const auto query = worker.next(Message::kEstimate);
    ASSERT_TRUE(query);
    v1::EstimateResult result;
    result.set_query_id(query->estimate().query_id());
    result.mutable_error()->set_reason(v1::ExitStatus::INTERNAL);
    // Another text each time: time may move on only when this answer is known.
    const std::string message = "no trainer, answer " + std::to_string(i);
    result.mutable_error()->set_message(message);
    worker.send(result);
    if (i == 2) break;
    EXPECT_TRUE(
        eventually([&] { return get(name).pending_status().message().find(message) != std::string::npos; }));
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(lives_through(worker, "workers/w", seconds(6)));
    }
  }
  EXPECT_TRUE(reaches(name, v1::Job::FAILED));
  EXPECT_EQ(get(name).exit().reason(), v1::ExitStatus::INTERNAL);
}

TEST_F(WorkerServiceTest, ACancelledRunIsAskedToStopAndEndsCancelled) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  v1::JobSpec spec = small_spec();
  spec.set_stop_grace_seconds(7);
  const v1::Assign assign = running(worker, spec);
  EXPECT_EQ(cancel(job_of(assign)).state(), v1::Job::CANCELLING);
  const v1::Stop stop = worker.next_stop();
  EXPECT_EQ(stop.attempt(), assign.attempt());
  EXPECT_EQ(stop.epoch(), assign.epoch());
  EXPECT_EQ(stop.grace().seconds(), 7);
  EXPECT_TRUE(stop.user_cancel());
  EXPECT_EQ(get(job_of(assign)).state(), v1::Job::CANCELLING) << "until the devices are free";
  worker.finish(assign, v1::Attempt::CANCELLED, v1::ExitStatus::CANCELLED);
  EXPECT_EQ(get(job_of(assign)).state(), v1::Job::CANCELLED);
}

TEST_F(WorkerServiceTest, ACancelOfAnAssignedJobIsStoppedToo) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const std::string name = submit().name();
  const v1::Assign assign = worker.next_assign();
  EXPECT_EQ(cancel(name).state(), v1::Job::CANCELLING);
  EXPECT_EQ(worker.next_stop().epoch(), assign.epoch());
  worker.finish(assign, v1::Attempt::CANCELLED, v1::ExitStatus::CANCELLED);
  EXPECT_EQ(get(name).state(), v1::Job::CANCELLED);
}

TEST_F(WorkerServiceTest, ACancelWhileItsWorkerIsAwayIsSaidWhenItIsBack) {
  FakeWorker away(channel_);
  away.enter(FakeWorker::hello());
  const v1::Assign assign = running(away);
  away.vanish();
  EXPECT_TRUE(eventually([&] { return this->worker("workers/w").state_message() == "not connected"; }));
  EXPECT_EQ(cancel(job_of(assign)).state(), v1::Job::CANCELLING);
  FakeWorker back(channel_);
  v1::Register hello = FakeWorker::hello();
  *hello.add_attempts() = FakeWorker::report(assign, v1::Attempt::RUNNING, 1);
  back.enter(hello);
  EXPECT_EQ(back.next_stop().epoch(), assign.epoch());
}

TEST_F(WorkerServiceTest, ACountedFailureIsTriedAgainAfterItsBackOff) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign first = running(worker);
  worker.finish(first, v1::Attempt::FAILED, v1::ExitStatus::INTERNAL);
  EXPECT_TRUE(waits_for(job_of(first), v1::PendingStatus::RETRY_BACKOFF));
  EXPECT_NE(get(job_of(first)).pending_status().message().find("because of the test"), std::string::npos);
  EXPECT_EQ(get(job_of(first)).retries_used(), 1);
  EXPECT_FALSE(worker.has(Message::kAssign));
  clock_.advance(seconds(3));
  const v1::Assign second = worker.next_assign();
  EXPECT_EQ(second.attempt(), job_of(first) + "/attempts/2");
  EXPECT_GT(second.epoch(), first.epoch());
  EXPECT_TRUE(second.resume());
}

TEST_F(WorkerServiceTest, AFailureThatWouldRepeatIsNotTriedAgain) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign assign = running(worker);
  worker.finish(assign, v1::Attempt::FAILED, v1::ExitStatus::NON_FINITE_LOSS);
  EXPECT_EQ(get(job_of(assign)).state(), v1::Job::FAILED);
  EXPECT_EQ(get(job_of(assign)).exit().message(), "because of the test");
}

TEST_F(WorkerServiceTest, ALostWorkerThatComesBackInTimeGoesOn) {
  FakeWorker silent(channel_);
  silent.enter(FakeWorker::hello());
  const v1::Assign assign = running(silent);
  clock_.advance(seconds(16));
  EXPECT_TRUE(attempt_reaches(job_of(assign), 0, v1::Attempt::LOST));
  EXPECT_TRUE(waits_for(job_of(assign), v1::PendingStatus::WORKER_LOST));
  EXPECT_EQ(silent.status().error_code(), grpc::StatusCode::UNAVAILABLE) << "it must register again";
  FakeWorker back(channel_);
  v1::Register hello = FakeWorker::hello();
  *hello.add_attempts() = FakeWorker::report(assign, v1::Attempt::RUNNING, 1);
  back.enter(hello);
  EXPECT_TRUE(reaches(job_of(assign), v1::Job::RUNNING));
  EXPECT_EQ(attempts(job_of(assign)).size(), 1U);
  back.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  EXPECT_EQ(get(job_of(assign)).state(), v1::Job::SUCCEEDED);
}

TEST_F(WorkerServiceTest, ALostWorkerThatStaysAwayIsFencedAndItsLateReportRefused) {
  FakeWorker silent(channel_);
  silent.enter(FakeWorker::hello("one"));
  const v1::Assign first = running(silent);
  const std::string name = job_of(first);
  clock_.advance(seconds(16));
  EXPECT_TRUE(attempt_reaches(name, 0, v1::Attempt::LOST));
  FakeWorker other(channel_);
  other.enter(FakeWorker::hello("two"));
  EXPECT_FALSE(other.has(Message::kAssign)) << "LOST is not ended";
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(other.has(Message::kAssign)) << "not before the fence";
    ASSERT_TRUE(lives_through(other, "workers/two", seconds(10)));
  }
  EXPECT_TRUE(attempt_reaches(name, 0, v1::Attempt::FENCED));
  const v1::Assign second = other.next_assign();
  EXPECT_EQ(second.attempt(), name + "/attempts/2");
  EXPECT_GT(second.epoch(), first.epoch());
  EXPECT_TRUE(second.resume());
  EXPECT_EQ(get(name).retries_used(), 0);
  other.run(second);

  FakeWorker late(channel_);
  v1::Register hello = FakeWorker::hello("one");
  *hello.add_attempts() = FakeWorker::report(first, v1::Attempt::SUCCEEDED, 9);
  late.enter(hello);
  const auto fence = late.next(Message::kFence);
  ASSERT_TRUE(fence);
  EXPECT_EQ(fence->fence().epoch(), first.epoch());
  late.send_chunk(first, v1::StreamChunk::LOG, 0, "late");
  EXPECT_TRUE(late.next(Message::kFence)) << "its bytes do not count either";
  EXPECT_EQ(get(name).state(), v1::Job::RUNNING);
  EXPECT_EQ(attempt(name, 0).state(), v1::Attempt::FENCED);
}

TEST_F(WorkerServiceTest, AnAttemptThatRegisterDoesNotListIsGone) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello("w", 1));
  const v1::Assign first = running(worker);
  FakeWorker reborn(channel_);
  reborn.enter(FakeWorker::hello("w", 2));
  const v1::Assign second = reborn.next_assign();
  EXPECT_EQ(second.attempt(), job_of(first) + "/attempts/2");
  EXPECT_EQ(attempt(job_of(first), 0).exit().reason(), v1::ExitStatus::WORKER_LOST);
  EXPECT_EQ(get(job_of(first)).retries_used(), 0);
}

TEST_F(WorkerServiceTest, AWrongEpochAndAnUnknownAttemptAreFenced) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign assign = running(worker);
  v1::AttemptReport wrong = FakeWorker::report(assign, v1::Attempt::SUCCEEDED, 5);
  wrong.set_epoch(assign.epoch() + 1);
  worker.send(wrong);
  EXPECT_EQ(worker.next(Message::kFence)->fence().epoch(), assign.epoch() + 1);
  wrong.set_attempt("jobs/none-12345/attempts/1");
  worker.send(wrong);
  EXPECT_EQ(worker.next(Message::kFence)->fence().attempt(), "jobs/none-12345/attempts/1");
  EXPECT_EQ(get(job_of(assign)).state(), v1::Job::RUNNING);
}

TEST_F(WorkerServiceTest, ARepeatedReportIsAcknowledgedAgainAlsoAfterTheJobsEnd) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign assign = running(worker);
  worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  const std::int64_t last = get(job_of(assign)).last_sequence();
  worker.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  restart();
  FakeWorker back(channel_);
  back.enter(FakeWorker::hello());
  back.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  EXPECT_EQ(get(job_of(assign)).last_sequence(), last) << "a repeat changes nothing";
}

TEST_F(WorkerServiceTest, ARunningJobOutlivesTheController) {
  auto worker = std::make_unique<FakeWorker>(channel_);
  worker->enter(FakeWorker::hello());
  const v1::Assign assign = running(*worker);
  const std::string name = job_of(assign);
  worker.reset();
  restart();
  EXPECT_EQ(get(name).state(), v1::Job::RUNNING);
  clock_.advance(seconds(14));  // less than a lease since the start
  FakeWorker back(channel_);
  v1::Register hello = FakeWorker::hello();
  *hello.add_attempts() = FakeWorker::report(assign, v1::Attempt::RUNNING, 1);
  back.enter(hello);
  back.finish(assign, v1::Attempt::SUCCEEDED, v1::ExitStatus::DONE);
  EXPECT_EQ(get(name).state(), v1::Job::SUCCEEDED);
  EXPECT_EQ(attempts(name).size(), 1U);
}

TEST_F(WorkerServiceTest, EpochsRiseOverARestart) {
  auto worker = std::make_unique<FakeWorker>(channel_);
  worker->enter(FakeWorker::hello());
  const v1::Assign first = running(*worker);
  worker.reset();
  restart();
  FakeWorker back(channel_);
  back.enter(FakeWorker::hello());
  EXPECT_GT(back.next_assign().epoch(), first.epoch());
}

TEST_F(WorkerServiceTest, ChunksAreAcknowledgedByOffsetAndResumed) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign assign = running(worker);
  const auto ack = [](FakeWorker& from) {
    const auto message = from.next(Message::kStreamAck);
    EXPECT_TRUE(message);
    return message ? message->stream_ack().offset() : -1;
  };
  EXPECT_EQ(ack(worker), 0) << "where the log starts";
  EXPECT_EQ(ack(worker), 0) << "where the metrics start";
  worker.send_chunk(assign, v1::StreamChunk::LOG, 0, "hello ");
  EXPECT_EQ(ack(worker), 6);
  worker.send_chunk(assign, v1::StreamChunk::LOG, 0, "hello ");
  EXPECT_EQ(ack(worker), 6) << "a repeat";
  worker.send_chunk(assign, v1::StreamChunk::LOG, 100, "gap");
  EXPECT_EQ(ack(worker), 6) << "a gap";
  worker.vanish();
  FakeWorker back(channel_);
  v1::Register hello = FakeWorker::hello();
  *hello.add_attempts() = FakeWorker::report(assign, v1::Attempt::RUNNING, 1);
  back.enter(hello);
  EXPECT_EQ(ack(back), 6) << "where to go on";
}

TEST_F(WorkerServiceTest, AChunkThatIsTooLargeEndsTheStream) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  const v1::Assign assign = running(worker);
  worker.send_chunk(assign, v1::StreamChunk::LOG, 0, std::string((256 << 10) + 1, 'x'));
  EXPECT_EQ(worker.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(WorkerServiceTest, AFaultedDeviceIsNotOffered) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  v1::WorkerMessage heartbeat;
  *heartbeat.mutable_heartbeat()->add_devices() = FakeWorker::hello().devices(0);
  heartbeat.mutable_heartbeat()->mutable_devices(0)->set_health(v1::Device::FAULTED);
  worker.send(heartbeat);
  EXPECT_TRUE(
      eventually([&] { return this->worker("workers/w").devices(0).health() == v1::Device::FAULTED; }));
  const std::string name = submit().name();
  EXPECT_TRUE(waits_for(name, v1::PendingStatus::NEVER_FITS));
  heartbeat.mutable_heartbeat()->mutable_devices(0)->set_health(v1::Device::OK);
  worker.send(heartbeat);
  EXPECT_EQ(job_of(worker.next_assign()), name);
}

TEST_F(WorkerServiceTest, StopEndsTheStreamWithUnavailable) {
  FakeWorker worker(channel_);
  worker.enter(FakeWorker::hello());
  controller_->stop();
  EXPECT_EQ(worker.status().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace coat::testing
