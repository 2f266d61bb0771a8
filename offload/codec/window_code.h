// The window code: encodes a plane of exponents in three bits each, at the
// speed of memory.
//
//   size_t bytes = EncodeWindow(plane, room);
//
// Weights have few exponents: seven adjacent ones cover about 97 %. A byte e of
// the plane is stored as c = top - e, modulo 256, if that is 0 to 6, and
// otherwise as c = 7 and e itself in a list. This takes 3.2 bits a weight; a
// Huffman code takes 2.6 at a fifth of the speed.
//
// | bytes | content                                                        |
// | ----- | -------------------------------------------------------------- |
// | 1     | top                                                            |
// | 24    | for each 64 bytes of the plane: bits 0, 1 and 2 of c, 64 each;  |
// |       | the last group is filled up with c = 0                         |
// | rest  | the bytes whose c is 7, in order                               |
//
// Internal to offload/codec. Highway chooses the instruction set; the bytes do
// not depend on it.
#ifndef TESSERA_OFFLOAD_CODEC_WINDOW_CODE_H_
#define TESSERA_OFFLOAD_CODEC_WINDOW_CODE_H_

#include <cstddef>
#include <span>

namespace tessera::offload {

// Returns the bytes written to `room`; 0 if they do not fit or a sample
// predicts that they will not. The plane must not be empty.
size_t EncodeWindow(std::span<const std::byte> plane,
                    std::span<std::byte> room);

// Fills `plane` from any bytes. Returns false if they are not a valid encoding
// of a plane of this size.
bool DecodeWindow(std::span<const std::byte> held, std::span<std::byte> plane);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_WINDOW_CODE_H_
