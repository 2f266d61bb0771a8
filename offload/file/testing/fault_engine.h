// FaultEngine: an IoEngine that injects faults into requests, for tests.
//
//   auto engine = std::make_unique<FaultEngine>(std::move(inner),
//       [](const IoRequest& r) { return FaultEngine::Fault{.error = EIO}; });
#ifndef TESSERA_OFFLOAD_FILE_TESTING_FAULT_ENGINE_H_
#define TESSERA_OFFLOAD_FILE_TESTING_FAULT_ENGINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "offload/file/io_engine.h"

namespace tessera::offload {

class FaultEngine final : public IoEngine {
 public:
  struct Fault {
    int error = 0;                 // fail without doing anything
    size_t most_bytes = SIZE_MAX;  // transfer at most this
    int64_t understate = 0;        // report this many bytes less
  };
  // Called on the submitting thread; safe for concurrent use.
  using Plan = std::function<Fault(const IoRequest&)>;

  FaultEngine(std::unique_ptr<IoEngine> inner, Plan plan)
      : plan_(std::move(plan)), inner_(std::move(inner)) {}

  std::string_view name() const override { return "faults"; }

  void Submit(IoRequest request) override {
    const Fault fault = plan_(request);
    if (fault.error != 0) {
      // Goes through the engine, so that `done` runs on its thread.
      request.kind = IoRequest::Kind::kRead;
      request.bytes = 0;
      request.done = [done = std::move(request.done), fault](int64_t) {
        done(-fault.error);
      };
    }
    request.bytes = std::min(request.bytes, fault.most_bytes);
    if (fault.understate != 0) {
      request.done = [done = std::move(request.done), fault](int64_t result) {
        done(result > fault.understate ? result - fault.understate : result);
      };
    }
    inner_->Submit(std::move(request));
  }

 private:
  const Plan plan_;
  const std::unique_ptr<IoEngine> inner_;  // destroyed first
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_TESTING_FAULT_ENGINE_H_
