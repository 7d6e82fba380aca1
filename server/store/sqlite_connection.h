// SQLite behind RAII: a connection, its prepared statements and bound values. Errors are StoreError with
// SQLite's own words. Not thread-safe: one connection belongs to one thread or one lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

struct sqlite3;
struct sqlite3_stmt;

namespace coat::store {

// One execution of a prepared statement; reset when it goes.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement, sqlite3* database);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Values are bound in order of the calls. Bound bytes must outlive the statement.
  Statement& bind(std::int64_t value);
  Statement& bind_text(const std::string& value);
  Statement& bind_blob(const std::string& value);
  Statement& bind_null();

  bool step();  // true: a row is there
  void run();   // to the end

  std::int64_t integer(int column) const;
  std::string bytes(int column) const;
  bool is_null(int column) const;

 private:
  void check(int code) const;
  sqlite3_stmt* statement_;
  sqlite3* database_;
  int bound_ = 0;
};

class Connection {
 public:
  enum class Mode { kReadWrite, kReadOnly };
  Connection(const std::string& file, Mode mode);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Prepared once for each text.
  Statement prepare(const std::string& sql);
  // Any number of statements without values.
  void execute(const std::string& sql);
  int changes() const;

 private:
  sqlite3* database_ = nullptr;
  std::unordered_map<std::string, sqlite3_stmt*> statements_;
};

// BEGIN IMMEDIATE now, ROLLBACK at the end unless commit() was called.
class Transaction {
 public:
  explicit Transaction(Connection& connection);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Connection& connection_;
  bool open_ = true;
};

}  // namespace coat::store
