// OpenSSL's reads and writes on a socket, without SIGPIPE and without waiting.
// OpenSSL's own socket BIO calls write(2), which raises SIGPIPE.
#ifndef TESSERA_COLLECTIVES_CHANNEL_SOCKET_BIO_H_
#define TESSERA_COLLECTIVES_CHANNEL_SOCKET_BIO_H_

#include <openssl/bio.h>

#include <memory>

namespace tessera::collectives::bootstrap {

class SocketBioMethod {
 public:
  SocketBioMethod();
  bool valid() const { return method_ != nullptr; }

  // A BIO over `socket`, which stays the caller's. Null where memory is short.
  // This object must outlive it.
  BIO* NewBio(int socket) const;

 private:
  struct Free {
    void operator()(BIO_METHOD* method) const { BIO_meth_free(method); }
  };
  std::unique_ptr<BIO_METHOD, Free> method_;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_SOCKET_BIO_H_
