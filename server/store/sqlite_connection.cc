#include "server/store/sqlite_connection.h"

#include <sqlite3.h>

#include "server/store/store.h"

namespace coat::store {
namespace {

constexpr int kBusyTimeoutMs = 10000;

}  // namespace

Statement::Statement(sqlite3_stmt* statement, sqlite3* database)
    : statement_(statement), database_(database) {}

Statement::~Statement() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

void Statement::check(int code) const {
  if (code != SQLITE_OK) throw StoreError(std::string("database: ") + sqlite3_errmsg(database_));
}

Statement& Statement::bind(std::int64_t value) {
  check(sqlite3_bind_int64(statement_, ++bound_, value));
  return *this;
}

Statement& Statement::bind_text(const std::string& value) {
  check(sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_STATIC));
  return *this;
}

Statement& Statement::bind_blob(const std::string& value) {
  check(sqlite3_bind_blob(statement_, ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_STATIC));
  return *this;
}

Statement& Statement::bind_null() {
  check(sqlite3_bind_null(statement_, ++bound_));
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  throw StoreError(std::string("database: ") + sqlite3_errmsg(database_));
}

void Statement::run() {
  while (step()) {
  }
}

std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::bytes(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return size > 0 ? std::string(data, static_cast<std::size_t>(size)) : std::string();
}

bool Statement::is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

Connection::Connection(const std::string& file, Mode mode) {
  const int flags =
      mode == Mode::kReadOnly ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  const int code = sqlite3_open_v2(file.c_str(), &database_, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) {
    const std::string why = database_ ? sqlite3_errmsg(database_) : sqlite3_errstr(code);
    sqlite3_close(database_);
    throw StoreError("cannot open " + file + ": " + why + "; look at --state-dir");
  }
  sqlite3_busy_timeout(database_, kBusyTimeoutMs);
}

Connection::~Connection() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);
}

Statement Connection::prepare(const std::string& sql) {
  auto [entry, added] = statements_.try_emplace(sql, nullptr);
  if (added && sqlite3_prepare_v3(database_, sql.c_str(), static_cast<int>(sql.size()),
                                  SQLITE_PREPARE_PERSISTENT, &entry->second, nullptr) != SQLITE_OK) {
    statements_.erase(entry);
    throw StoreError(std::string("database: ") + sqlite3_errmsg(database_));
  }
  return Statement(entry->second, database_);
}

void Connection::execute(const std::string& sql) {
  char* message = nullptr;
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, &message) != SQLITE_OK) {
    const std::string why = message ? message : "unknown error";
    sqlite3_free(message);
    throw StoreError("database: " + why);
  }
}

int Connection::changes() const { return sqlite3_changes(database_); }

Transaction::Transaction(Connection& connection) : connection_(connection) {
  connection_.execute("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    connection_.execute("ROLLBACK");
  } catch (const StoreError&) {
    // SQLite has rolled back by itself (a full disk does that); the first error is what counts.
  }
}

void Transaction::commit() {
  connection_.execute("COMMIT");
  open_ = false;
}

}  // namespace coat::store
