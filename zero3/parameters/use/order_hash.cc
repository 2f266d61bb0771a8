#include "zero3/parameters/use/order_hash.h"

#include <algorithm>

namespace tessera::zero3 {
namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void OrderHash::Record(ParameterId id) {
  uses_.push_back(id);
  hashes_.push_back(Mix(hash() + static_cast<uint64_t>(id.value()) + 1));
}

void OrderHash::Clear() {
  uses_.clear();
  hashes_.resize(1);
}

std::optional<size_t> FirstDivergence(const OrderHash& a, const OrderHash& b) {
  DivergenceSearch search(std::min(a.size(), b.size()));
  while (!search.Done()) {
    search.Report(a.PrefixHash(search.Length()) ==
                  b.PrefixHash(search.Length()));
  }
  if (search.Position() == a.size() && a.size() == b.size()) {
    return std::nullopt;
  }
  return search.Position();
}

void DivergenceSearch::Report(bool all_equal) {
  if (all_equal) {
    begin_ = Length();
  } else {
    end_ = Length() - 1;
  }
}

}  // namespace tessera::zero3
