// ProcessMemory: the resident memory of this process, as the system reports it.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_PROCESS_MEMORY_H_
#define TESSERA_TOOLS_TRAIN_LOOP_PROCESS_MEMORY_H_

#include <cstdint>
#include <string_view>

namespace tessera::train {

// Bytes; 0 if the system does not report it.
struct ProcessMemory {
  int64_t resident = 0;       // VmRSS
  int64_t peak_resident = 0;  // VmHWM
};

// Parses a text like /proc/PID/status (man proc_pid_status).
ProcessMemory ParseProcessStatus(std::string_view text);

ProcessMemory ReadProcessMemory();

// Makes the C library return freed blocks of 1 MiB or more to the system at
// once. By default its threshold grows with the blocks that are freed, up to
// 32 MiB, and the heap then keeps tens of MiB of freed tensors.
void ReturnFreedBlocks();

// Restarts the peak from the current value. False if the system does not allow
// that (man proc_pid_clear_refs).
bool RestartPeakMemory();

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_PROCESS_MEMORY_H_
