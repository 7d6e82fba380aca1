// The database's schema, as migrations that are applied in order at start, each in one transaction.
#pragma once

#include "server/store/sqlite_connection.h"

namespace coat::store {

// The version that this program writes.
int schema_version();
// Brings the database to schema_version(). Throws StoreError when it is of a newer one.
void migrate(Connection& connection);

}  // namespace coat::store
