// EventFile: the steps of a run as scalars for TensorBoard.
//
//   TESSERA_ASSIGN_OR_RETURN(auto events, EventFile::Create("logs", 0));
//   TESSERA_RETURN_IF_ERROR(events->Add(step));
//
//   $ tensorboard --logdir=logs
//
// The scalars are the stable keys of MetricsFile: loss, grad_norm, lr,
// tokens_per_second, memory_bytes, compute, communication, bubble and offload,
// after a validation eval_loss, and from the first rollback on rollbacks.
// TensorBoard's scalars are f32.
//
// The format: records of a length, its masked CRC-32C, data and their masked
// CRC-32C, all little-endian (TensorFlow, lib/io/record_writer.h); the data are
// protocol buffer messages `Event` (tensorflow/core/util/event.proto), the
// first one with file_version "brain.Event:2". The second one is a SessionLog
// of status START, whose step makes TensorBoard drop what earlier files of the
// directory have from that step on.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_EVENT_FILE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_EVENT_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "tools/train/report/run_result.h"

namespace tessera::train {

struct EventScalar {
  std::string_view tag;  // UTF-8.
  float value = 0;       // May be NaN or infinite.
};

// `data` as a record of the file.
std::string EventRecord(std::string_view data);

// The messages of the file. `seconds` since 1970.
std::string VersionEvent(double seconds);
std::string StartEvent(double seconds, int64_t first_step);
std::string ScalarEvent(double seconds, int64_t step,
                        std::span<const EventScalar> scalars);

class EventFile {
 public:
  // Creates `directory` if it does not exist, and in it a new file whose name
  // sorts after those of earlier runs, with the start of a run whose first step
  // is `first_step`. Errors of the file system with the flag --tensorboard.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(
      const std::string& directory, int64_t first_step,
      std::function<absl::Time()> now = absl::Now);

  const std::string& path() const { return path_; }

  // Appends a step with one write.
  absl::Status Add(const StepMetrics& step);

 private:
  EventFile(std::string path, int fd, std::function<absl::Time()> now)
      : path_(std::move(path)), fd_(fd), now_(std::move(now)) {}

  absl::Status Write(std::string_view bytes);

  const std::string path_;
  const UniqueFd fd_;
  const std::function<absl::Time()> now_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_EVENT_FILE_H_
