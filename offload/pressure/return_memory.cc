#include "offload/pressure/return_memory.h"

#include <cstdlib>  // defines __GLIBC__ where it is

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tessera::offload {

bool ReturnFreeMemory() {
#ifdef __GLIBC__
  return malloc_trim(0) == 1;
#else
  return false;
#endif
}

}  // namespace tessera::offload
