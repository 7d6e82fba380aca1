#include "server/store/sqlite_rows.h"

namespace coat::store {
namespace {

std::string serialized(const google::protobuf::Message& message) {
  std::string bytes;
  if (!message.SerializeToString(&bytes)) throw StoreError("a message cannot be serialized");
  return bytes;
}

void write_labels(Connection& connection, const v1::Job& job) {
  for (const auto& [key, value] : job.spec().labels()) {
    connection.prepare("INSERT OR REPLACE INTO job_labels (job, key, value) VALUES (?, ?, ?)")
        .bind_text(job.name())
        .bind_text(key)
        .bind_text(value)
        .run();
  }
}

// The guard in the upsert is the last line of defence: a terminal state is written once.
void write_job(Connection& connection, const JobRow& row) {
  v1::Job job = row.job;
  job.clear_pending_status();
  const std::string message = serialized(job);
  const std::string estimate = row.estimate ? serialized(*row.estimate) : std::string();
  Statement insert = connection.prepare(
      "INSERT INTO jobs (name, ord, spec_name, state, terminal, not_before_ms, message, estimate)"
      " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET state = excluded.state,"
      " terminal = excluded.terminal, not_before_ms = excluded.not_before_ms, message = excluded.message,"
      " estimate = excluded.estimate WHERE jobs.terminal = 0 OR jobs.state = excluded.state");
  insert.bind_text(job.name()).bind(row.order).bind_text(job.spec().name()).bind(job.state());
  insert.bind(is_terminal(job.state()) ? 1 : 0).bind(row.not_before_ms).bind_blob(message);
  if (row.estimate) {
    insert.bind_blob(estimate);
  } else {
    insert.bind_null();
  }
  insert.run();
  if (connection.changes() != 1) throw StoreError(job.name() + " has ended; its state cannot change");
  write_labels(connection, job);
}

void write_attempt(Connection& connection, const AttemptRow& row) {
  const std::string message = serialized(row.attempt);
  Statement insert = connection.prepare(
      "INSERT INTO attempts (job, number, state, terminal, epoch, report_sequence, log_bytes, metrics_bytes, "
      "message)"
      " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, number) DO UPDATE SET state = excluded.state,"
      " terminal = excluded.terminal, report_sequence = excluded.report_sequence, log_bytes = "
      "excluded.log_bytes,"
      " metrics_bytes = excluded.metrics_bytes, message = excluded.message"
      " WHERE attempts.epoch = excluded.epoch AND (attempts.terminal = 0 OR attempts.state = "
      "excluded.state)");
  insert.bind_text(row.job).bind(row.number).bind(row.attempt.state());
  insert.bind(is_terminal(row.attempt.state()) ? 1 : 0).bind(row.attempt.epoch()).bind(row.report_sequence);
  insert.bind(row.log_bytes).bind(row.metrics_bytes).bind_blob(message).run();
  if (connection.changes() != 1) throw StoreError(row.attempt.name() + " has ended; its state cannot change");
}

void write_counter(Connection& connection, const std::string& name, std::int64_t value) {
  connection.prepare("UPDATE counters SET value = MAX(value, ?) WHERE name = ?")
      .bind(value)
      .bind_text(name)
      .run();
}

}  // namespace

void write_batch(Connection& connection, const Batch& batch) {
  for (const JobRow& row : batch.jobs) write_job(connection, row);
  for (const AttemptRow& row : batch.attempts) write_attempt(connection, row);
  for (const WorkerRow& row : batch.workers) {
    const std::string message = serialized(row.worker);
    connection.prepare("INSERT OR REPLACE INTO workers (name, message) VALUES (?, ?)")
        .bind_text(row.worker.name())
        .bind_blob(message)
        .run();
  }
  for (const EventRow& row : batch.events) {
    const std::string message = serialized(row.event);
    connection.prepare("INSERT INTO events (sequence, job, message) VALUES (?, ?, ?)")
        .bind(row.event.sequence())
        .bind_text(row.job)
        .bind_blob(message)
        .run();
  }
  for (const RequestRow& row : batch.requests) {
    connection.prepare("INSERT OR REPLACE INTO request_ids (id, job, create_ms, spec) VALUES (?, ?, ?, ?)")
        .bind_text(row.id)
        .bind_text(row.job)
        .bind(row.create_ms)
        .bind_blob(row.spec)
        .run();
  }
  if (!batch.events.empty()) write_counter(connection, "sequence", batch.events.back().event.sequence());
  if (batch.epoch > 0) write_counter(connection, "epoch", batch.epoch);
  if (batch.prune_requests_before_ms > 0) {
    connection.prepare("DELETE FROM request_ids WHERE create_ms < ?")
        .bind(batch.prune_requests_before_ms)
        .run();
  }
  if (batch.prune_events_through > 0) {
    connection.prepare("DELETE FROM events WHERE sequence <= ?").bind(batch.prune_events_through).run();
    write_counter(connection, "pruned_through", batch.prune_events_through);
  }
}

}  // namespace coat::store
