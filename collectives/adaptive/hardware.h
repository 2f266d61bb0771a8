// What a machine is, as far as the costs of communication depend on it.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_HARDWARE_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_HARDWARE_H_

#include <string>
#include <string_view>

namespace tessera::collectives {

// "AMD EPYC 9654; 2 cpus; caches 32K 1024K 32768K; host a": the processor's
// name, the CPUs that this process may run on, the sizes of the data caches and
// the host's name. At most 512 bytes; "?" for what the system does not say.
std::string DescribeHardware();

// The value of the first "model name" of /proc/cpuinfo's text, shortened; "?"
// where there is none.
std::string ModelNameIn(std::string_view cpuinfo);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_HARDWARE_H_
