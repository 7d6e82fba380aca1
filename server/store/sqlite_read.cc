#include <algorithm>

#include "server/store/sqlite_rows.h"

namespace coat::store {
namespace {

const char kJobColumns[] = "SELECT message, ord, not_before_ms, estimate FROM jobs ";
const char kAttemptColumns[] =
    "SELECT a.message, a.job, a.number, a.report_sequence, a.log_bytes, a.metrics_bytes FROM attempts a ";

template <typename Message>
void parse(const std::string& bytes, Message& message) {
  if (!message.ParseFromString(bytes))
    throw StoreError("the database holds a damaged " + message.GetTypeName());
}

JobRow job_row(const Statement& statement) {
  JobRow row;
  parse(statement.bytes(0), row.job);
  row.order = statement.integer(1);
  row.not_before_ms = statement.integer(2);
  if (!statement.is_null(3)) parse(statement.bytes(3), row.estimate.emplace());
  return row;
}

AttemptRow attempt_row(const Statement& statement) {
  AttemptRow row;
  parse(statement.bytes(0), row.attempt);
  row.job = statement.bytes(1);
  row.number = static_cast<int>(statement.integer(2));
  row.report_sequence = statement.integer(3);
  row.log_bytes = statement.integer(4);
  row.metrics_bytes = statement.integer(5);
  return row;
}

std::int64_t counter(Connection& connection, const std::string& name) {
  Statement query = connection.prepare("SELECT value FROM counters WHERE name = ?");
  query.bind_text(name);
  return query.step() ? query.integer(0) : 0;
}

}  // namespace

LoadedState read_live_state(Connection& connection) {
  LoadedState state;
  Statement jobs = connection.prepare(std::string(kJobColumns) + "WHERE terminal = 0 ORDER BY ord");
  while (jobs.step()) state.live_jobs.push_back(job_row(jobs));
  Statement attempts =
      connection.prepare(std::string(kAttemptColumns) +
                         "JOIN jobs j ON j.name = a.job WHERE j.terminal = 0 ORDER BY a.job, a.number");
  while (attempts.step()) state.attempts.push_back(attempt_row(attempts));
  Statement workers = connection.prepare("SELECT message FROM workers ORDER BY name");
  while (workers.step()) parse(workers.bytes(0), state.workers.emplace_back().worker);
  Statement requests =
      connection.prepare("SELECT id, spec, job, create_ms FROM request_ids ORDER BY create_ms");
  while (requests.step()) {
    state.requests.push_back({requests.bytes(0), requests.bytes(1), requests.bytes(2), requests.integer(3)});
  }
  Statement counts = connection.prepare("SELECT state, COUNT(*) FROM jobs GROUP BY state");
  while (counts.step()) state.jobs_by_state[static_cast<int>(counts.integer(0))] = counts.integer(1);
  state.last_sequence = counter(connection, "sequence");
  state.pruned_through = counter(connection, "pruned_through");
  state.epoch = counter(connection, "epoch");
  return state;
}

std::optional<JobRow> read_job(Connection& connection, const std::string& name) {
  Statement query = connection.prepare(std::string(kJobColumns) + "WHERE name = ?");
  query.bind_text(name);
  if (!query.step()) return std::nullopt;
  return job_row(query);
}

std::vector<AttemptRow> read_attempts(Connection& connection, const std::string& job) {
  Statement query = connection.prepare(std::string(kAttemptColumns) + "WHERE a.job = ? ORDER BY a.number");
  query.bind_text(job);
  std::vector<AttemptRow> rows;
  while (query.step()) rows.push_back(attempt_row(query));
  return rows;
}

JobPage read_jobs(Connection& connection, const JobQuery& query) {
  std::string sql = std::string(kJobColumns) + "WHERE 1";
  if (query.before_order > 0) sql += " AND ord < ?";
  if (!query.states.empty()) {
    sql += " AND state IN (?";
    for (std::size_t i = 1; i < query.states.size(); ++i) sql += ", ?";
    sql += ")";
  }
  if (!query.name_prefix.empty()) sql += " AND substr(spec_name, 1, ?) = ?";
  for (std::size_t i = 0; i < query.labels.size(); ++i) {
    sql += " AND EXISTS (SELECT 1 FROM job_labels l WHERE l.job = jobs.name AND l.key = ? AND l.value = ?)";
  }
  sql += " ORDER BY ord DESC LIMIT ?";

  Statement statement = connection.prepare(sql);
  if (query.before_order > 0) statement.bind(query.before_order);
  for (const v1::Job::State state : query.states) statement.bind(state);
  if (!query.name_prefix.empty()) {
    statement.bind(static_cast<std::int64_t>(query.name_prefix.size())).bind_text(query.name_prefix);
  }
  for (const auto& [key, value] : query.labels) statement.bind_text(key).bind_text(value);
  statement.bind(query.limit + 1);

  JobPage page;
  std::int64_t bytes = 0;
  while (statement.step()) {
    if (page.jobs.size() == static_cast<std::size_t>(query.limit) ||
        (!page.jobs.empty() && bytes >= query.max_bytes)) {
      page.more = true;
      break;
    }
    page.jobs.push_back(job_row(statement));
    bytes += static_cast<std::int64_t>(page.jobs.back().job.ByteSizeLong());
  }
  return page;
}

std::vector<EventRow> read_events(Connection& connection, const EventQuery& query) {
  Statement statement =
      query.job.empty()
          ? connection.prepare(
                "SELECT message, job FROM events WHERE sequence > ? AND job <> '' ORDER BY sequence LIMIT ?")
          : connection.prepare(
                "SELECT message, job FROM events WHERE job = ? AND sequence > ? ORDER BY sequence LIMIT ?");
  if (!query.job.empty()) statement.bind_text(query.job);
  statement.bind(query.after_sequence).bind(query.limit);
  std::vector<EventRow> rows;
  while (statement.step()) {
    EventRow& row = rows.emplace_back();
    parse(statement.bytes(0), row.event);
    row.job = statement.bytes(1);
  }
  return rows;
}

}  // namespace coat::store
