#include "tools/train/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "offload/file/crc32c.h"
#include "tools/train/report/metrics_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// A number of `bytes` bytes, the lowest first.
std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (; bytes > 0; --bytes, value >>= 8) text += static_cast<char>(value);
  return text;
}

// Checksums of data that hold checksums are masked.
std::string Checksum(std::string_view data) {
  const uint32_t crc =
      offload::Crc32c(std::as_bytes(std::span(data.data(), data.size())));
  return LittleEndian(std::rotr(crc, 15) + 0xA282EAD8U, 4);
}

// The wire format of protocol buffers: a field's number and wire type, then its
// value.

std::string Varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

std::string Field(uint32_t number, int64_t value) {
  return Varint(number << 3) + Varint(static_cast<uint64_t>(value));
}
std::string Field(uint32_t number, double value) {
  return Varint(number << 3 | 1) +
         LittleEndian(std::bit_cast<uint64_t>(value), 8);
}
std::string Field(uint32_t number, float value) {
  return Varint(number << 3 | 5) +
         LittleEndian(std::bit_cast<uint32_t>(value), 4);
}
std::string Field(uint32_t number, std::string_view value) {
  return absl::StrCat(Varint(number << 3 | 2), Varint(value.size()), value);
}

// The fields of Event, Summary.Value and SessionLog that are written.
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5,
                   kSessionLog = 7;
constexpr uint32_t kValue = 1, kTag = 1, kSimpleValue = 2;
constexpr uint32_t kStatus = 1;
constexpr int64_t kStart = 1;

double SecondsOf(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

absl::Status Refusal(int error, std::string_view what,
                     const std::string& path) {
  return absl::ErrnoToStatus(
      error, absl::StrCat("--tensorboard: ", path, " cannot be ", what));
}

// The number after the prefix of an event file's name; -1 for other names.
int64_t SecondsInName(std::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) return -1;
  name.remove_prefix(kPrefix.size());
  int64_t seconds = 0;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &seconds) ? seconds
                                                                    : -1;
}

// TensorBoard reads files in the order of their names, which begin with the
// time in seconds.
absl::StatusOr<int64_t> SecondsAfter(const std::string& directory,
                                     absl::Time now) {
  int64_t seconds = absl::ToUnixSeconds(now);
  std::error_code error;
  fs::directory_iterator at(directory, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    seconds =
        std::max(seconds, SecondsInName(at->path().filename().string()) + 1);
  }
  if (error) return Refusal(error.value(), "read", directory);
  return seconds;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0'
             ? name
             : "localhost";
}

}  // namespace

std::string EventRecord(std::string_view data) {
  const std::string length = LittleEndian(data.size(), 8);
  return absl::StrCat(length, Checksum(length), data, Checksum(data));
}

std::string VersionEvent(double seconds) {
  return Field(kWallTime, seconds) + Field(kFileVersion, "brain.Event:2");
}

std::string StartEvent(double seconds, int64_t first_step) {
  return Field(kWallTime, seconds) + Field(kStep, first_step) +
         Field(kSessionLog, Field(kStatus, kStart));
}

std::string ScalarEvent(double seconds, int64_t step,
                        std::span<const EventScalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += Field(kValue, Field(kTag, tag) + Field(kSimpleValue, value));
  }
  return Field(kWallTime, seconds) + Field(kStep, step) +
         Field(kSummary, summary);
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(
    const std::string& directory, int64_t first_step,
    std::function<absl::Time()> now) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Refusal(error.value(), "created", directory);
  const absl::Time begin = now();
  TESSERA_ASSIGN_OR_RETURN(const int64_t seconds,
                           SecondsAfter(directory, begin));
  const std::string path =
      absl::StrCat(directory, "/", kPrefix, absl::StrFormat("%010d", seconds),
                   ".", HostName(), ".", getpid());
  const int fd = open(path.c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return Refusal(errno, "created", path);
  std::unique_ptr<EventFile> file(new EventFile(path, fd, std::move(now)));
  TESSERA_RETURN_IF_ERROR(
      file->Write(EventRecord(VersionEvent(SecondsOf(begin))) +
                  EventRecord(StartEvent(SecondsOf(begin), first_step))));
  return file;
}

absl::Status EventFile::Add(const StepMetrics& step) {
  const nlohmann::json values = MetricsOf(step);
  std::vector<EventScalar> scalars;
  for (const char* const key :
       {"loss", "eval_loss", "test_loss", "expert_imbalance",
        "max_attention_score", "reward_margin", "reward_accuracy", "rollbacks",
        "grad_norm", "lr", "tokens_per_second", "memory_bytes", "compute",
        "communication", "bubble", "offload"}) {
    if (values[key].is_number()) scalars.push_back({key, values[key]});
  }
  return Write(
      EventRecord(ScalarEvent(SecondsOf(now_()), step.record.step, scalars)));
}

absl::Status EventFile::Write(std::string_view bytes) {
  return Append(fd_, bytes,
                absl::StrCat("--tensorboard: ", path_, " cannot be written"));
}

}  // namespace tessera::train
