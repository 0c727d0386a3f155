// Thin owners of SQLite's handles. One connection is used by one thread at a time; the caller sees to that.
#ifndef SERVER_STORE_SQLITE_H_
#define SERVER_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata::server {

class SqliteDb;

// A prepared statement of `db`, which outlives it. Bind, then Step until false; Reset (or the destructor of
// SqliteUse) makes it ready for the next use.
class SqliteStatement {
 public:
  ~SqliteStatement() { sqlite3_finalize(statement_); }
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

 private:
  friend class SqliteDb;
  friend class SqliteUse;
  explicit SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_;
};

// One use of a cached statement: values are bound in order, columns read by index, and the statement is reset
// at the end of the scope (so that it holds no read lock).
class SqliteUse {
 public:
  SqliteUse(SqliteDb& db, SqliteStatement& statement) : db_(db), statement_(statement.statement_) {}
  ~SqliteUse();
  SqliteUse(const SqliteUse&) = delete;
  SqliteUse& operator=(const SqliteUse&) = delete;

  SqliteUse& Int(int64_t value);
  SqliteUse& Text(absl::string_view value);
  SqliteUse& Blob(absl::string_view value);

  // True for a row, false at the end.
  absl::StatusOr<bool> Next();
  // For statements without rows.
  absl::Status Run();

  int64_t GetInt(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string GetBytes(int column) const;  // text or blob

 private:
  SqliteDb& db_;
  sqlite3_stmt* statement_;
  int bound_ = 0;
  int bind_error_ = SQLITE_OK;
};

class SqliteDb {
 public:
  // Opens or creates `path` in WAL mode with synchronous=FULL, so a commit that returned survives power loss.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  // Statements without parameters and results; several may be separated by ';'.
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  // PRAGMA quick_check: kDataLoss with SQLite's own finding when the file is damaged.
  absl::Status QuickCheck();
  // Runs migrations[user_version...] one by one, each in a transaction that also raises user_version. A file
  // from a newer program is refused.
  absl::Status Migrate(const char* const* migrations, int count);

  // The cached statement for `sql`, which must be a constant: the cache is keyed by its text and never
  // shrinks.
  absl::StatusOr<SqliteStatement*> Prepare(const char* sql);

  // ENOSPC, EIO, read-only and the like are kUnavailable; damage is kDataLoss; the rest is kInternal.
  absl::Status Error(int code, absl::string_view what);

 private:
  SqliteDb(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}

  sqlite3* db_;
  const std::string path_;
  std::map<std::string, std::unique_ptr<SqliteStatement>> statements_;
};

// Begin ... Commit; the destructor rolls back what was not committed.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDb& db) : db_(db) {}
  ~SqliteTransaction();
  absl::Status Begin();
  absl::Status Commit();

 private:
  SqliteDb& db_;
  bool open_ = false;
};

}  // namespace strata::server

#endif  // SERVER_STORE_SQLITE_H_
