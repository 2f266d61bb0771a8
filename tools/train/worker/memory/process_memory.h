// ProcessMemory: what the system says that this process holds.
#ifndef TESSERA_TOOLS_TRAIN_WORKER_MEMORY_PROCESS_MEMORY_H_
#define TESSERA_TOOLS_TRAIN_WORKER_MEMORY_PROCESS_MEMORY_H_

#include <cstdint>
#include <string_view>

namespace tessera::train {

// Bytes; 0 where the system does not say.
struct ProcessMemory {
  int64_t resident = 0;       // VmRSS
  int64_t peak_resident = 0;  // VmHWM
};

// What a text like /proc/PID/status says (man proc_pid_status).
ProcessMemory ParseProcessStatus(std::string_view text);

ProcessMemory ReadProcessMemory();

// From here on freed blocks of 1 MiB or more go back to the system at once. The
// C library's own threshold grows with the blocks that are freed, up to 32 MiB,
// and then keeps tens of MiB of freed tensors.
void ReturnFreedBlocks();

// From here on the peak is that of what follows. False where the system does
// not allow that (man proc_pid_clear_refs): it stays what it was.
bool RestartPeakMemory();

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WORKER_MEMORY_PROCESS_MEMORY_H_
