// BufferMeter: the buffers of a rank while a step goes on, and at their peak.
#ifndef TESSERA_ZERO3_ESTIMATE_TIMELINE_BUFFER_METER_H_
#define TESSERA_ZERO3_ESTIMATE_TIMELINE_BUFFER_METER_H_

#include <algorithm>
#include <cstdint>

#include "zero3/estimate/memory_use.h"

namespace tessera::zero3 {

class BufferMeter {
 public:
  // Bytes come (or go, where negative) in device memory; `of_values` where they
  // hold values of parameters.
  void Hold(Purpose purpose, int64_t bytes, bool of_values = false) {
    now_.Add(purpose, Tier::kDevice, bytes);
    total_ += bytes;
    if (of_values) HoldValues(bytes);
    if (total_ <= peak_total_) return;
    peak_total_ = total_;
    peak_ = now_;
    peak_.Add(Purpose::kPrefetchBuffers, Tier::kDevice, -missing_state_);
  }

  // Of what is held already, so many bytes hold values (or do so no more).
  void HoldValues(int64_t bytes) {
    values_ += bytes;
    peak_values_ = std::max(peak_values_, values_);
  }

  // While the state is created: how much of it is not there yet.
  void SetMissingState(int64_t bytes) {
    total_ += missing_state_ - bytes;
    missing_state_ = bytes;
  }

  // What there is at the first moment at which there is most in all, beyond the
  // whole state.
  const MemoryUse& peak() const { return peak_; }
  // The most that holds values at any moment.
  int64_t peak_values() const { return peak_values_; }

 private:
  MemoryUse now_;
  MemoryUse peak_;
  int64_t missing_state_ = 0;
  int64_t total_ = 0;
  int64_t peak_total_ = 0;
  int64_t values_ = 0;
  int64_t peak_values_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TIMELINE_BUFFER_METER_H_
