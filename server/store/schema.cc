#include "server/store/schema.h"

#include <string>
#include <vector>

#include "server/store/store.h"

namespace coat::store {
namespace {

// Never change an entry that was released: add the next one. Messages are serialized coat.v1 messages; the
// columns beside them are what queries ask for and what the messages do not hold.
const std::vector<std::string>& migrations() {
  static const std::vector<std::string> kMigrations = {
      R"sql(
CREATE TABLE jobs (
  name TEXT PRIMARY KEY,
  ord INTEGER NOT NULL UNIQUE,
  spec_name TEXT NOT NULL,
  state INTEGER NOT NULL,
  terminal INTEGER NOT NULL,
  not_before_ms INTEGER NOT NULL,
  message BLOB NOT NULL,
  estimate BLOB
);
CREATE INDEX jobs_by_state ON jobs (state, ord);
CREATE INDEX jobs_live ON jobs (ord) WHERE terminal = 0;
CREATE TABLE job_labels (
  job TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (job, key)
) WITHOUT ROWID;
CREATE TABLE attempts (
  job TEXT NOT NULL,
  number INTEGER NOT NULL,
  state INTEGER NOT NULL,
  terminal INTEGER NOT NULL,
  epoch INTEGER NOT NULL UNIQUE,
  report_sequence INTEGER NOT NULL,
  log_bytes INTEGER NOT NULL,
  metrics_bytes INTEGER NOT NULL,
  message BLOB NOT NULL,
  PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE TABLE workers (
  name TEXT PRIMARY KEY,
  message BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE events (
  sequence INTEGER PRIMARY KEY,
  job TEXT NOT NULL,
  message BLOB NOT NULL
);
CREATE INDEX events_by_job ON events (job, sequence);
CREATE TABLE request_ids (
  id TEXT PRIMARY KEY,
  job TEXT NOT NULL,
  create_ms INTEGER NOT NULL,
  spec BLOB NOT NULL
);
CREATE TABLE counters (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters VALUES ('epoch', 0), ('sequence', 0), ('pruned_through', 0);
)sql"};
  return kMigrations;
}

int current_version(Connection& connection) {
  connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)");
  Statement query = connection.prepare("SELECT COALESCE(MAX(version), 0) FROM schema_version");
  query.step();
  return static_cast<int>(query.integer(0));
}

}  // namespace

int schema_version() { return static_cast<int>(migrations().size()); }

void migrate(Connection& connection) {
  const int found = current_version(connection);
  if (found > schema_version()) {
    throw StoreError("the state folder is of schema version " + std::to_string(found) +
                     ", and this program knows " + std::to_string(schema_version()) +
                     ": it was written by a newer release; run that one, or choose another --state-dir");
  }
  for (int version = found + 1; version <= schema_version(); ++version) {
    Transaction transaction(connection);
    connection.execute(migrations()[static_cast<std::size_t>(version - 1)]);
    connection.prepare("INSERT INTO schema_version VALUES (?)").bind(version).run();
    transaction.commit();
  }
}

}  // namespace coat::store
