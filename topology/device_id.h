// DeviceId: the number of one device, such as a GPU, in its job.
#ifndef TESSERA_TOPOLOGY_DEVICE_ID_H_
#define TESSERA_TOPOLOGY_DEVICE_ID_H_

#include "base/strong_int.h"

namespace tessera::topology {

// Not interchangeable with a rank: a rank may have several devices or none.
using DeviceId = StrongInt<struct DeviceIdTag>;

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DEVICE_ID_H_
