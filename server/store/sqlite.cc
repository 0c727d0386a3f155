#include "server/store/sqlite.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace strata::server {
namespace {

// Another process (a backup, the sqlite3 shell) may hold the write lock for a moment.
constexpr int kBusyTimeoutMs = 5000;

}  // namespace

SqliteUse::~SqliteUse() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

SqliteUse& SqliteUse::Int(int64_t value) {
  if (const int rc = sqlite3_bind_int64(statement_, ++bound_, value); rc != SQLITE_OK) bind_error_ = rc;
  return *this;
}

SqliteUse& SqliteUse::Text(absl::string_view value) {
  const char* data = value.data() == nullptr ? "" : value.data();
  const int rc = sqlite3_bind_text64(statement_, ++bound_, data, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  if (rc != SQLITE_OK) bind_error_ = rc;
  return *this;
}

SqliteUse& SqliteUse::Blob(absl::string_view value) {
  const char* data = value.data() == nullptr ? "" : value.data();
  const int rc = sqlite3_bind_blob64(statement_, ++bound_, data, value.size(), SQLITE_TRANSIENT);
  if (rc != SQLITE_OK) bind_error_ = rc;
  return *this;
}

absl::StatusOr<bool> SqliteUse::Next() {
  if (bind_error_ != SQLITE_OK) return db_.Error(bind_error_, "binding a value");
  const int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  return db_.Error(rc, sqlite3_sql(statement_));
}

absl::Status SqliteUse::Run() {
  STRATA_ASSIGN_OR_RETURN(const bool row, Next());
  return row ? absl::InternalError(absl::StrCat("unexpected row from ", sqlite3_sql(statement_)))
             : absl::OkStatus();
}

std::string SqliteUse::GetBytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
}

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path) {
  sqlite3* handle = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &handle,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<SqliteDb> db(new SqliteDb(handle, path));
  if (rc != SQLITE_OK) return db->Error(rc, "opening");
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  STRATA_RETURN_IF_ERROR(
      db->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON"));
  return db;
}

SqliteDb::~SqliteDb() {
  statements_.clear();
  sqlite3_close(db_);
}

absl::Status SqliteDb::Execute(const std::string& sql) {
  const int rc = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? absl::OkStatus() : Error(rc, sql);
}

absl::StatusOr<int64_t> SqliteDb::QueryInt(const std::string& sql) {
  sqlite3_stmt* raw = nullptr;
  if (const int rc = sqlite3_prepare_v2(db_, sql.c_str(), -1, &raw, nullptr); rc != SQLITE_OK)
    return Error(rc, sql);
  SqliteStatement statement(raw);
  SqliteUse use(*this, statement);
  STRATA_ASSIGN_OR_RETURN(const bool row, use.Next());
  return row ? use.GetInt(0) : 0;
}

absl::Status SqliteDb::QuickCheck() {
  sqlite3_stmt* raw = nullptr;
  if (const int rc = sqlite3_prepare_v2(db_, "PRAGMA quick_check(1)", -1, &raw, nullptr); rc != SQLITE_OK) {
    return Error(rc, "quick_check");
  }
  SqliteStatement statement(raw);
  SqliteUse use(*this, statement);
  STRATA_ASSIGN_OR_RETURN(const bool row, use.Next());
  const std::string finding = row ? use.GetBytes(0) : "no answer";
  if (finding == "ok") return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": damaged: ", finding, "; restore it from a backup"));
}

absl::Status SqliteDb::Migrate(const char* const* migrations, int count) {
  STRATA_ASSIGN_OR_RETURN(const int64_t version, QueryInt("PRAGMA user_version"));
  if (version > count) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": has format ", version, ", this program knows up to ", count,
                     ": use the strata_server that wrote it, or a newer one"));
  }
  for (int64_t i = version; i < count; ++i) {
    SqliteTransaction transaction(*this);
    STRATA_RETURN_IF_ERROR(transaction.Begin());
    STRATA_RETURN_IF_ERROR(Execute(migrations[i]), path_, ": migration ", i + 1);
    STRATA_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA user_version=", i + 1)));
    STRATA_RETURN_IF_ERROR(transaction.Commit());
  }
  return absl::OkStatus();
}

absl::StatusOr<SqliteStatement*> SqliteDb::Prepare(const char* sql) {
  std::unique_ptr<SqliteStatement>& cached = statements_[sql];
  if (cached == nullptr) {
    sqlite3_stmt* raw = nullptr;
    const int rc = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
    if (rc != SQLITE_OK) return Error(rc, sql);
    cached.reset(new SqliteStatement(raw));
  }
  return cached.get();
}

absl::Status SqliteDb::Error(int code, absl::string_view what) {
  const std::string message =
      absl::StrCat(path_, ": ", db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_), " (",
                   sqlite3_errstr(code), ", code ", code, ") in: ", what.substr(0, 200));
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_NOMEM:
    case SQLITE_PERM:
      return absl::UnavailableError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    default:
      return absl::InternalError(message);
  }
}

SqliteTransaction::~SqliteTransaction() {
  // After some errors SQLite has rolled back by itself, and this one then fails harmlessly.
  if (open_) (void)db_.Execute("ROLLBACK");
}

absl::Status SqliteTransaction::Begin() {
  STRATA_RETURN_IF_ERROR(db_.Execute("BEGIN IMMEDIATE"));
  open_ = true;
  return absl::OkStatus();
}

absl::Status SqliteTransaction::Commit() {
  STRATA_RETURN_IF_ERROR(db_.Execute("COMMIT"));
  open_ = false;
  return absl::OkStatus();
}

}  // namespace strata::server
