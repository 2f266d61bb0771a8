// ParityOptions: what a ParityCase may be made of, as factors of a
// CoveringProblem.
//
//   for (const CoveringRow& row : CoveringArray(ParityProblem())) {
//     const ParityCase run = CaseOf(row);
//   }
#ifndef TESSERA_TOOLS_TRAIN_PARITY_PARITY_OPTIONS_H_
#define TESSERA_TOOLS_TRAIN_PARITY_PARITY_OPTIONS_H_

#include <string>
#include <vector>

#include "tools/train/parity/covering_array.h"
#include "tools/train/parity/parity_case.h"

namespace tessera::train {

struct ParityOption {
  std::string name;
  std::vector<std::string> values;
};

// By the factors of the problem: sizes of dp, pp, cp and tp that make at most 8
// ranks; every schedule, with 1 to 3 chunks; recomputation; and so on.
const std::vector<ParityOption>& ParityOptions();

// Not allowed: what is not possible, and most schedules together with more than
// two ranks of the other axes.
CoveringProblem ParityProblem();

// Not possible: what TrainRank refuses (chunks that a schedule has not, kv
// heads that do not go with tp, offloading what ZeRO leaves whole), and what
// says nothing (a tier where nothing is offloaded, compression without one,
// gathering ahead of weights that are whole, tp with moments that round
// otherwise in a slice of a parameter). As CoveringProblem::allowed of rows in
// part.
bool IsPossible(const CoveringRow& row);

// The factor of that name, and the number of a value of it. Both must be there.
int OptionNumber(const std::string& name);
int ValueNumber(const std::string& option, const std::string& value);

// A complete row.
ParityCase CaseOf(const CoveringRow& row);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_PARITY_OPTIONS_H_
