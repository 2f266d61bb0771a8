// The window code: a plane of exponents in three bits each, at the speed of
// memory.
//
//   size_t bytes = EncodeWindow(plane, room);
//
// Weights have few exponents: seven neighbouring ones cover about 97 of 100. A
// byte e of the plane is held as c = top - e, modulo 256, where that is 0 to 6,
// and otherwise as c = 7 and e itself in a list. 3.2 bits a weight, where
// Huffman's code takes 2.6 at a fifth of the speed.
//
// | bytes | content                                                        |
// | ----- | -------------------------------------------------------------- |
// | 1     | top                                                            |
// | 24    | for each 64 bytes of the plane: bits 0, 1 and 2 of c, 64 each;  |
// |       | the last group is filled up with c = 0                         |
// | rest  | the bytes whose c is 7, in order                               |
//
// Internal to offload/codec. By the instruction set that Highway chooses; the
// same bytes on all.
#ifndef TESSERA_OFFLOAD_CODEC_WINDOW_CODE_H_
#define TESSERA_OFFLOAD_CODEC_WINDOW_CODE_H_

#include <cstddef>
#include <span>

namespace tessera::offload {

// Bytes written to `room`; 0 where they do not fit, or where a sample says so.
// The plane is not empty.
size_t EncodeWindow(std::span<const std::byte> plane,
                    std::span<std::byte> room);

// Fills `plane` from any bytes. False where EncodeWindow never makes them of a
// plane of this size.
bool DecodeWindow(std::span<const std::byte> held, std::span<std::byte> plane);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_WINDOW_CODE_H_
