#include "tools/text/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/os/processors.h"
#include "base/os/thread_pool.h"
#include "base/os/unique_fd.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/text/document_encoder.h"
#include "tools/text/indexed_dataset.h"
#include "tools/text/text_hash.h"

namespace tessera::text {
namespace {

// Part of the entries' names. Increase it when the same text and tokenizer
// produce different tokens.
constexpr int kVersion = 2;

absl::StatusOr<uint64_t> HashOfFile(const std::string& path) {
  const auto failed = [&path] {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot read ", QuotedPath(path)));
  };
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return failed();
  TextHash hash;
  std::vector<char> bytes(size_t{1} << 20);
  while (true) {
    const ssize_t count = read(fd.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed();
    if (count == 0) return hash.value();
    hash.Add({bytes.data(), static_cast<size_t>(count)});
  }
}

// `hash` is the hash of the file.
absl::Status MakeEntry(const DataFile& file, uint64_t hash,
                       const Tokenizer& tokenizer, const std::string& prefix) {
  TESSERA_ASSIGN_OR_RETURN(
      IndexedDatasetWriter writer,
      IndexedDatasetWriter::Create(prefix, tokenizer.vocabulary_size()));
  ThreadPool pool(static_cast<int>(AvailableProcessors()));
  DocumentEncoder encoder(tokenizer, pool, std::move(writer));
  TESSERA_RETURN_IF_ERROR(
      ForEachDocument(file, std::bind_front(&DocumentEncoder::Add, &encoder),
                      {.vocabulary = tokenizer.vocabulary_size()}));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t hash_now, HashOfFile(file.path));
  if (hash_now == hash) return encoder.Finish();
  return absl::AbortedError(
      absl::StrCat(QuotedPath(file.path), " changed while it was tokenised"));
}

}  // namespace

bool TokenCache::Keeps(const DataFile& file, const Tokenizer& tokenizer) const {
  struct stat status;
  return !directory_.empty() && IsText(file.kind) &&
         tokenizer.fingerprint() != 0 &&
         stat(file.path.c_str(), &status) == 0 &&
         status.st_size >= kMinTextBytes;
}

absl::StatusOr<TokenFile> TokenCache::Open(const DataFile& file,
                                           const Tokenizer& tokenizer) const {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t hash, HashOfFile(file.path));
  const std::string prefix = absl::StrFormat(
      "%s/%016x-%016x-%s-v%d", directory_, hash, tokenizer.fingerprint(),
      file.kind == DataKind::kJsonLines ? "jsonl" : "text", kVersion);
  const std::string index = absl::StrCat(prefix, ".idx");
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) {
    return absl::ErrnoToStatus(
        error.value(), absl::StrCat("cannot create ", QuotedPath(directory_)));
  }
  // Closing the file releases the lock. On file systems without locks several
  // processes may write the same entry, each of them atomically.
  const UniqueFd lock(open(absl::StrCat(prefix, ".lock").c_str(),
                           O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.valid()) {
    while (flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  absl::StatusOr<TokenFile> tokens =
      TokenFile::Open(index, tokenizer.vocabulary_size());
  if (tokens.ok()) return tokens;
  TESSERA_RETURN_IF_ERROR(MakeEntry(file, hash, tokenizer, prefix));
  return TokenFile::Open(index, tokenizer.vocabulary_size());
}

}  // namespace tessera::text
