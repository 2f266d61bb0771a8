#include "tools/train/loop/run_context.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/groups/agreement.h"

namespace tessera::train {

absl::Status RunContext::Agree(const absl::Status& mine) const {
  return collectives::AgreeOnStatus(world, mine, kAgreementTimeout);
}

absl::StatusOr<std::string> RunContext::FromFirst(std::string_view mine) const {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> texts,
      collectives::ExchangeTexts(world, mine, kAgreementTimeout));
  return std::move(texts[0]);
}

void RunContext::Say(std::string_view line) const {
  if (!is_first() || sinks.table == nullptr || settings.quiet) return;
  if (outputs != nullptr) outputs->EndLine();
  *sinks.table << "train: " << line << std::endl;
}

void RunContext::Trace(std::string_view name, int64_t begin) const {
  if (trace == nullptr) return;
  trace->AddCheckpoint(name, {begin, collectives::MonotonicNanos()});
}

}  // namespace tessera::train
