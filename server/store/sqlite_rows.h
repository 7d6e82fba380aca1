// Rows of the store as SQL, on a connection and inside a transaction of the caller's. All throw StoreError.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/store/sqlite_connection.h"
#include "server/store/store.h"

namespace coat::store {

void write_batch(Connection& connection, const Batch& batch);

LoadedState read_live_state(Connection& connection);
std::optional<JobRow> read_job(Connection& connection, const std::string& name);
std::vector<AttemptRow> read_attempts(Connection& connection, const std::string& job);
JobPage read_jobs(Connection& connection, const JobQuery& query);
std::vector<EventRow> read_events(Connection& connection, const EventQuery& query);

}  // namespace coat::store
