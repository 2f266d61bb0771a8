// StepRecorder: the uses of a step as they happen.
//
//   StepRecorder recorder;
//   recorder.Ask(now_ns);
//   recorder.Begin("layer.0", bytes, now_ns);
//   recorder.End("layer.0", /*dirty=*/false);
//   std::vector<BlockUse> order = recorder.Take(now_ns);
//
// A use computes from when its block is there to when the next block is asked
// for, or to the end of the step. Not safe for concurrent use.
#ifndef TESSERA_OFFLOAD_PREFETCH_STEP_RECORDER_H_
#define TESSERA_OFFLOAD_PREFETCH_STEP_RECORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "offload/prefetch/block_use.h"

namespace tessera::offload {

class StepRecorder {
 public:
  // A block is asked for: the compute of the use before is over. The clock of
  // that use runs on where no Begin follows.
  void Ask(int64_t now_ns) { asked_ns_ = now_ns; }
  // It is there.
  void Begin(std::string_view key, int64_t bytes, int64_t now_ns,
             bool overwrite = false);
  // The latest use of `key` that has not ended ends; nothing where there is
  // none.
  void End(std::string_view key, bool dirty);

  int64_t uses() const { return static_cast<int64_t>(order_.size()); }

  // What was recorded; the recorder is empty again.
  std::vector<BlockUse> Take(int64_t now_ns);

 private:
  std::vector<BlockUse> order_;
  std::map<std::string, std::vector<size_t>, std::less<>> open_;  // uses
  int64_t asked_ns_ = 0;
  int64_t began_ns_ = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_STEP_RECORDER_H_
