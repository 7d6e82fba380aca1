#include "server/store/sqlite_store.h"

#include <system_error>
#include <utility>

#include "server/store/schema.h"
#include "server/store/sqlite_rows.h"

namespace coat::store {
namespace {

void configure(Connection& connection) {
  connection.prepare("PRAGMA journal_mode = WAL").run();
  connection.execute(
      "PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864; PRAGMA foreign_keys = ON");
}

std::int64_t wal_bytes(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file.string() + "-wal", error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

}  // namespace

SqliteStore::SqliteStore(SqliteOptions options, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      writer_(options_.file.string(), Connection::Mode::kReadWrite) {
  configure(writer_);
  try {
    migrate(writer_);
  } catch (const StoreError& error) {
    throw StoreError(options_.file.string() + ": " + error.what());
  }
  for (Reader* reader : {&rows_, &lists_}) {
    reader->connection = std::make_unique<Connection>(options_.file.string(), Connection::Mode::kReadOnly);
  }
  thread_ = std::thread([this] { write_loop(); });
}

SqliteStore::~SqliteStore() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SqliteStore::commit(Batch batch, Done done) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({std::move(batch), std::move(done)});
  }
  wake_.notify_all();
}

void SqliteStore::write_loop() {
  SteadyTime next_write_back = clock_.now() + options_.checkpoint_interval;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (queue_.empty()) {
      if (stopping_) break;
      if (clock_.now() >= next_write_back) {
        lock.unlock();
        write_back();
        next_write_back = clock_.now() + options_.checkpoint_interval;
        lock.lock();
        continue;
      }
      clock_.wait_until(wake_, lock, next_write_back);
      continue;
    }
    std::deque<Queued> group;
    while (!queue_.empty() && group.size() < options_.group_limit) {
      group.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    lock.unlock();
    const std::string error = write(group);
    for (const Queued& queued : group) {
      if (queued.done) queued.done(error);
    }
    lock.lock();
  }
}

std::string SqliteStore::write(const std::deque<Queued>& group) {
  bool anything = false;
  for (const Queued& queued : group) anything = anything || !queued.batch.empty();
  if (!anything) return {};
  const auto start = std::chrono::steady_clock::now();
  try {
    Transaction transaction(writer_);
    for (const Queued& queued : group) write_batch(writer_, queued.batch);
    transaction.commit();
  } catch (const StoreError& error) {
    return error.what();
  }
  if (options_.on_commit)
    options_.on_commit(std::chrono::steady_clock::now() - start, wal_bytes(options_.file));
  return {};
}

void SqliteStore::write_back() {
  try {
    writer_.prepare("PRAGMA wal_checkpoint(TRUNCATE)").run();
  } catch (const StoreError&) {
    // A reader is in the way; the log's size is a figure that is watched, and the next turn tries again.
  }
}

LoadedState SqliteStore::load() {
  const std::lock_guard<std::mutex> lock(lists_.mutex);
  return read_live_state(*lists_.connection);
}

std::optional<JobRow> SqliteStore::find_job(const std::string& name) {
  const std::lock_guard<std::mutex> lock(rows_.mutex);
  return read_job(*rows_.connection, name);
}

std::vector<AttemptRow> SqliteStore::find_attempts(const std::string& job) {
  const std::lock_guard<std::mutex> lock(rows_.mutex);
  return read_attempts(*rows_.connection, job);
}

JobPage SqliteStore::list_jobs(const JobQuery& query) {
  const std::lock_guard<std::mutex> lock(lists_.mutex);
  return read_jobs(*lists_.connection, query);
}

std::vector<EventRow> SqliteStore::list_events(const EventQuery& query) {
  const std::lock_guard<std::mutex> lock(lists_.mutex);
  return read_events(*lists_.connection, query);
}

}  // namespace coat::store
