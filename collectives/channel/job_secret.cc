#include "collectives/channel/job_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"

#ifdef TESSERA_HAVE_OPENSSL
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>
#include <memory>
#endif

namespace tessera::collectives {

#ifdef TESSERA_HAVE_OPENSSL
namespace {

struct FreeKdf {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

OSSL_PARAM Octets(const char* name, std::string_view bytes) {
  return OSSL_PARAM_construct_octet_string(
      name, const_cast<char*>(bytes.data()), bytes.size());
}

}  // namespace
#endif

absl::StatusOr<std::string> HkdfSha256([[maybe_unused]] std::string_view secret,
                                       [[maybe_unused]] std::string_view salt,
                                       [[maybe_unused]] std::string_view info,
                                       size_t bytes) {
  if (bytes < 1 || bytes > 255 * 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("HKDF-SHA256 gives 1 to 8160 bytes, not ", bytes));
  }
#ifdef TESSERA_HAVE_OPENSSL
  char digest[] = "SHA256";
  std::array<OSSL_PARAM, 5> params = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      Octets(OSSL_KDF_PARAM_KEY, secret), Octets(OSSL_KDF_PARAM_SALT, salt),
      Octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  std::unique_ptr<EVP_KDF, FreeKdf> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  std::unique_ptr<EVP_KDF_CTX, FreeKdf> context(EVP_KDF_CTX_new(kdf.get()));
  std::string key(bytes, '\0');
  if (context != nullptr &&
      EVP_KDF_derive(context.get(),
                     reinterpret_cast<unsigned char*>(key.data()), key.size(),
                     params.data()) == 1) {
    return key;
  }
  ERR_clear_error();
  return absl::InternalError("OpenSSL has no HKDF with SHA-256");
#else
  return absl::UnimplementedError(
      "this build has no OpenSSL; install libssl-dev and build again");
#endif
}

namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxBytes = 4096;
constexpr size_t kRandomBytes = 32;

absl::Status SystemError(std::string_view what, const std::string& path) {
  const std::string text =
      absl::StrCat("cannot ", what, " the secret's file \"", path,
                   "\": ", std::strerror(errno));
  return absl::Status(absl::ErrnoToStatusCode(errno), text);
}

absl::Status CheckSize(size_t bytes, std::string_view where) {
  if (bytes >= kMinBytes && bytes <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the secret in ", where, " has ", bytes > kMaxBytes ? "more than " : "",
      std::min(bytes, kMaxBytes), " bytes; use ", kMinBytes, " to ", kMaxBytes,
      " random ones, such as those of: openssl rand -hex 32"));
}

absl::Status CheckFile(const struct stat& info, const std::string& path) {
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the secret's file \"", path, "\" is not a regular file"));
  }
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "the secret's file \"%s\" belongs to uid %d, not to this process's %d",
        path, info.st_uid, geteuid()));
  }
  if ((info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "the secret's file \"%s\" has mode %04o and is open to others; close it "
      "with: chmod 600",
      path, info.st_mode & 07777));
}

absl::StatusOr<std::string> ReadUpTo(const UniqueFd& fd, size_t limit,
                                     const std::string& path) {
  std::string bytes(limit, '\0');
  size_t have = 0;
  while (have < limit) {
    const ssize_t got = read(fd.get(), bytes.data() + have, limit - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", path);
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

// Creates a directory and its parent if missing, accessible only to this user.
absl::Status MakeDirectory(const std::string& directory) {
  const size_t slash = directory.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    mkdir(directory.substr(0, slash).c_str(), 0700);
  }
  if (mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  return SystemError("make the directory of", directory);
}

absl::Status WriteNew(const std::string& path, std::string_view bytes) {
  UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return SystemError("make", path);
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Writes the file under a temporary name and links it. link(2) fails if another
// process created the file meanwhile; in this case the other file is used.
absl::Status MakeSecretFile(const std::string& directory,
                            const std::string& path) {
  TESSERA_RETURN_IF_ERROR(MakeDirectory(directory));
  TESSERA_ASSIGN_OR_RETURN(const std::string secret, RandomHex(kRandomBytes));
  TESSERA_ASSIGN_OR_RETURN(const std::string suffix, RandomHex(8));
  const std::string temporary = absl::StrCat(path, ".", suffix, ".tmp");
  absl::Status status = WriteNew(temporary, absl::StrCat(secret, "\n"));
  if (status.ok() && link(temporary.c_str(), path.c_str()) != 0 &&
      errno != EEXIST) {
    status = SystemError("make", path);
  }
  unlink(temporary.c_str());
  return status;
}

absl::StatusOr<std::string> UserDirectory(const EnvironmentVariable& lookup) {
  const std::string cache = lookup("XDG_CACHE_HOME").value_or("");
  if (!cache.empty() && cache[0] == '/') return absl::StrCat(cache, "/tessera");
  const std::string home = lookup("HOME").value_or("");
  if (!home.empty() && home[0] == '/') {
    return absl::StrCat(home, "/.cache/tessera");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot store the job's secret: set ", kJobSecretVariable,
      " to the same 16 or more random bytes on every rank, or HOME"));
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  // Does not block if it is a pipe.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return SystemError("open", path);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return SystemError("look at", path);
  TESSERA_RETURN_IF_ERROR(CheckFile(info, path));
  // Room for the longest secret and its end of line.
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadUpTo(fd, kMaxBytes + 3, path));
  std::string secret(absl::StripTrailingAsciiWhitespace(bytes));
  TESSERA_RETURN_IF_ERROR(
      CheckSize(secret.size(), absl::StrCat("\"", path, "\"")));
  return secret;
}

absl::StatusOr<std::string> ReadOrMakeSecretFile(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/job_secret");
  absl::StatusOr<std::string> secret = ReadSecretFile(path);
  if (!absl::IsNotFound(secret.status())) return secret;
  TESSERA_RETURN_IF_ERROR(MakeSecretFile(directory, path));
  return ReadSecretFile(path);
}

absl::StatusOr<std::string> FindJobSecret(const EnvironmentVariable& lookup,
                                          bool local_only) {
  if (std::optional<std::string> secret = lookup(kJobSecretVariable)) {
    TESSERA_RETURN_IF_ERROR(CheckSize(secret->size(), kJobSecretVariable));
    return *std::move(secret);
  }
  if (const auto path = lookup(kJobSecretFileVariable)) {
    TESSERA_ASSIGN_OR_RETURN(std::string secret, ReadSecretFile(*path),
                             Annotate(_, kJobSecretFileVariable));
    return secret;
  }
  if (!local_only) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks on several hosts need a secret: set ", kJobSecretVariable,
        " to the same 16 or more random bytes on every rank (openssl rand -hex "
        "32), or ",
        kJobSecretFileVariable, " to a file that holds them"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string directory, UserDirectory(lookup));
  return ReadOrMakeSecretFile(directory);
}

}  // namespace tessera::collectives
