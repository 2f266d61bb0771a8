#include "tools/comm_bench/regret.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"

namespace tessera::tools {
namespace {

std::string CaseOf(const Row& row) {
  return absl::StrCat(
      row.engine, ", ", row.world, " ranks, ", OpKindName(row.op), " of ",
      ByteSize(row.bytes).ToString(), ": ", row.choice->algorithm);
}

RegretSummary Summarise(std::string op, std::vector<const Row*> rows) {
  std::sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) {
    return a->choice->regret < b->choice->regret;
  });
  RegretSummary summary;
  summary.op = std::move(op);
  summary.cases = static_cast<int64_t>(rows.size());
  // The smallest that at least 95 % of the cases do not exceed.
  summary.p95 = rows[(rows.size() * 95 + 99) / 100 - 1]->choice->regret;
  summary.max = rows.back()->choice->regret;
  summary.worst = CaseOf(*rows.back());
  return summary;
}

}  // namespace

void SetChoice(std::span<Row> rows, const std::string& engine,
               const std::string& chosen) {
  Row* first = nullptr;
  double fastest = 0;
  double taken = 0;
  for (Row& row : rows) {
    if (row.engine != engine) continue;
    if (first == nullptr) first = &row;
    fastest = fastest == 0 ? row.seconds : std::min(fastest, row.seconds);
    if (row.algorithm == chosen) taken = row.seconds;
  }
  if (first == nullptr || taken == 0 || fastest == 0) return;
  first->choice = Choice{chosen, taken / fastest};
}

std::vector<RegretSummary> SummariseRegret(std::span<const Row> rows) {
  std::map<collectives::OpKind, std::vector<const Row*>> by_op;
  std::vector<const Row*> all;
  for (const Row& row : rows) {
    if (!row.choice.has_value()) continue;
    by_op[row.op].push_back(&row);
    all.push_back(&row);
  }
  std::vector<RegretSummary> summaries;
  for (auto& [op, chosen] : by_op) {
    summaries.push_back(
        Summarise(std::string(OpKindName(op)), std::move(chosen)));
  }
  if (!all.empty()) summaries.push_back(Summarise("all", std::move(all)));
  return summaries;
}

}  // namespace tessera::tools
