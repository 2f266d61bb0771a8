// Prints the engines that are linked into this program.
#include <iostream>

#include "collectives/engine/engine_registry.h"

int main() {
  for (const auto& name : tessera::collectives::RegisteredEngines()) {
    std::cout << name << "\n";
  }
}
