// A cuDNN of version 9.5.1 that can only be loaded. First in LD_LIBRARY_PATH as
// libcudnn.so.9.
#include <stddef.h>

size_t cudnnGetVersion(void) { return 90501; }

#define NOT_CALLED(name) \
  int name(void) { return 1; }
NOT_CALLED(cudnnBackendCreateDescriptor)
NOT_CALLED(cudnnBackendDestroyDescriptor)
NOT_CALLED(cudnnBackendExecute)
NOT_CALLED(cudnnBackendFinalize)
NOT_CALLED(cudnnBackendGetAttribute)
NOT_CALLED(cudnnBackendSetAttribute)
NOT_CALLED(cudnnCreate)
NOT_CALLED(cudnnDestroy)
NOT_CALLED(cudnnGetErrorString)
NOT_CALLED(cudnnGetLastErrorString)
NOT_CALLED(cudnnSetStream)
