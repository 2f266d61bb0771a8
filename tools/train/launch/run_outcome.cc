#include "tools/train/launch/run_outcome.h"

#include <algorithm>
#include <cstdint>

#include "nlohmann/json.hpp"
#include "tools/train/launch/mean_shares.h"
#include "tools/train/report/print_report.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

int64_t MostResident(const RunResult& result) {
  int64_t most = 0;
  for (const RankResult& rank : result.ranks) {
    most = std::max(most, rank.memory.peak_resident);
  }
  return most;
}

void AddShares(const TimeShares& shares, Json& json) {
  json["compute"] = shares.compute;
  json["communication"] = shares.communication;
  json["bubble"] = shares.bubble;
  json["offload"] = shares.offload;
  json["state_traffic"] = shares.state_traffic;
  json["state_hidden"] = shares.state_hidden;
}

}  // namespace

std::string OutcomeAsJson(const RunOutcome& outcome) {
  const Settings& settings = outcome.settings;
  const RunResult& result = outcome.result;
  Json json;
  json["run_dir"] = outcome.run_dir;
  json["checkpoint"] = result.checkpoint;
  json["model"] = settings.model;
  json["mesh"] = settings.parallel.mesh.ToFlag();
  json["first_step"] = result.first_step;
  json["steps"] = result.steps.size();
  json["tokens"] = settings.batch * settings.length *
                   static_cast<int64_t>(result.steps.size());
  json["seconds"] = result.seconds;
  json["tokens_per_second"] = result.tokens_per_second;
  if (!result.steps.empty()) {
    json["first_loss"] = result.steps.front().record.loss;
    json["last_loss"] = result.steps.back().record.loss;
  }
  if (!result.ranks.empty()) AddShares(MeanShares(result.ranks), json);
  json["memory_bytes"] = MostResident(result);
  json["strategy_changes"] = Json::array();
  for (const StrategyChange& change : result.strategy_changes) {
    json["strategy_changes"].push_back({{"steps", change.steps},
                                        {"used", change.used},
                                        {"strategy", change.strategy},
                                        {"flags", change.flags}});
  }
  json["sample"] = outcome.sample;
  if (outcome.report) {
    json["report"] = Json::parse(RunReportAsJson(*outcome.report));
  }
  if (outcome.verified) {
    json["verified"] = {{"steps", outcome.verified->steps},
                        {"largest_difference", outcome.verified->largest},
                        {"at_step", outcome.verified->at_step}};
  }
  // Text of a model need not be UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::train
