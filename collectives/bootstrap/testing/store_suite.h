// Conformance tests for implementations of Store.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_TESTING_STORE_SUITE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_TESTING_STORE_SUITE_H_

#include <memory>
#include <vector>

#include "collectives/bootstrap/store.h"

namespace tessera::collectives {

using Stores = std::vector<std::unique_ptr<Store>>;

// All ranks can read a value, whether they ask before or after it is set. Keys
// can be set only once, reads are counted, and exceeded limits are errors.
void CheckSetAndGet(Stores& stores);

// All-gathers of random texts, some of them large, and barriers, over all ranks
// and over random members.
void CheckAllGather(Stores& stores, int seed);

// A wait ends at its deadline and names the missing ranks.
void CheckDeadline(Stores& stores);

// The last rank leaves: the others' waits for it end at once. Ends its store.
void CheckLeaving(Stores& stores);

// Many threads of every rank at once.
void CheckThreads(Stores& stores);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_TESTING_STORE_SUITE_H_
