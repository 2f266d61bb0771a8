#include "pipeline/simulate/path.h"

namespace tessera::pipeline {

std::string_view CauseName(Cause cause) {
  switch (cause) {
    case Cause::kStart:
      return "start";
    case Cause::kSameRank:
      return "same rank";
    case Cause::kInput:
      return "input";
    case Cause::kLink:
      return "link";
    case Cause::kPeer:
      return "peer";
    case Cause::kParameters:
      return "parameters";
    case Cause::kAllRanks:
      return "all ranks";
  }
  return "?";
}

}  // namespace tessera::pipeline
