#ifdef TESSERA_HAVE_OPENSSL

#include "collectives/channel/socket_bio.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

namespace tessera::collectives::bootstrap {
namespace {

// The BIO's data pointer holds the descriptor itself.
int SocketOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

bool ForNow() { return errno == EAGAIN || errno == EINTR; }

int Write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(SocketOf(bio), bytes, static_cast<size_t>(size),
                            MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && ForNow()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int Read(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  BIO_clear_flags(bio, BIO_FLAGS_IN_EOF);
  const ssize_t got =
      recv(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && ForNow()) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long Control(BIO* bio, int command, long, void*) {  // NOLINT: OpenSSL's type.
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    default:
      return 0;
  }
}

int Create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

}  // namespace

SocketBioMethod::SocketBioMethod()
    : method_(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "tessera socket")) {
  if (method_ == nullptr) return;
  if (BIO_meth_set_write(method_.get(), &Write) != 1 ||
      BIO_meth_set_read(method_.get(), &Read) != 1 ||
      BIO_meth_set_ctrl(method_.get(), &Control) != 1 ||
      BIO_meth_set_create(method_.get(), &Create) != 1) {
    method_.reset();
  }
}

BIO* SocketBioMethod::NewBio(int socket) const {
  BIO* bio = BIO_new(method_.get());
  if (bio != nullptr) {
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  }
  return bio;
}

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_HAVE_OPENSSL
