// The default store: one SQLite database in WAL mode with full sync, one writer thread that commits together
// what has queued up while it wrote (group commit), and two connections for reads, so that a long
// list never holds up a look at one job.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "proto/common/clock.h"
#include "server/store/sqlite_connection.h"
#include "server/store/store.h"

namespace coat::store {

struct SqliteOptions {
  std::filesystem::path file;
  std::chrono::seconds checkpoint_interval{60};  // the log is written back and cut off this often
  std::size_t group_limit = 1024;                // batches of one transaction
  // Told after each transaction, on the writer thread.
  std::function<void(std::chrono::duration<double> commit, std::int64_t wal_bytes)> on_commit;
};

class SqliteStore : public Store {
 public:
  // Opens or makes the database and migrates it. Throws StoreError.
  SqliteStore(SqliteOptions options, Clock& clock);
  // Writes what was queued, then stops.
  ~SqliteStore() override;

  LoadedState load() override;
  void commit(Batch batch, Done done) override;
  std::optional<JobRow> find_job(const std::string& name) override;
  std::vector<AttemptRow> find_attempts(const std::string& job) override;
  JobPage list_jobs(const JobQuery& query) override;
  std::vector<EventRow> list_events(const EventQuery& query) override;

 private:
  struct Queued {
    Batch batch;
    Done done;
  };
  void write_loop();
  std::string write(const std::deque<Queued>& group);
  void write_back();

  SqliteOptions options_;
  Clock& clock_;
  Connection writer_;
  struct Reader {
    std::mutex mutex;
    std::unique_ptr<Connection> connection;
  };
  Reader rows_;
  Reader lists_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queued> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace coat::store
