#include "collectives/adaptive/cost_cache.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

uint64_t HashOf(const CostKey& key) {
  const std::string text =
      absl::StrCat(key.hardware, "\n", key.engine, "\n", key.ranks, "\n",
                   key.ranks_per_host, "\n", key.reproducible);
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a.
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
}

// With its parent, such as ~/.cache.
absl::Status MakeDirectories(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    TESSERA_RETURN_IF_ERROR(MakeDirectory(path.substr(0, slash)));
  }
  return MakeDirectory(path);
}

}  // namespace

std::string DefaultCacheDirectory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  // The specification: a relative path is to be ignored.
  if (cache != nullptr && cache[0] == '/')
    return absl::StrCat(cache, "/tessera");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') {
    return absl::StrCat(home, "/.cache/tessera");
  }
  return "";
}

std::string CostPath(const std::string& directory, const CostKey& key) {
  return absl::StrCat(
      directory, "/",
      absl::StrFormat("collective-costs-%016x.json", HashOf(key)));
}

absl::StatusOr<CostTable> LoadCosts(const std::string& directory,
                                    const CostKey& key) {
  const std::string path = CostPath(directory, key);
  absl::StatusOr<std::string> text =
      ReadFile(path, static_cast<int64_t>(kMaxCostText));
  if (!text.ok()) return absl::NotFoundError(text.status().message());
  absl::StatusOr<CostTable> table = CostTableFromJson(*text);
  if (!table.ok()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", table.status().message()));
  }
  if (table->key == key) return table;
  return absl::NotFoundError(absl::StrCat(path, " holds costs of another key"));
}

absl::Status StoreCosts(const std::string& directory, const CostTable& table) {
  if (directory.empty()) {
    return absl::FailedPreconditionError(
        "there is no cache directory: set XDG_CACHE_HOME or HOME");
  }
  TESSERA_RETURN_IF_ERROR(CheckCostTable(table));
  TESSERA_RETURN_IF_ERROR(MakeDirectories(directory));
  return WriteFile(CostPath(directory, table.key), CostTableToJson(table));
}

}  // namespace tessera::collectives
