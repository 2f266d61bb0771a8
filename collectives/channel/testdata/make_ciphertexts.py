#!/usr/bin/env python3
"""Prints the expected values of message_cipher_test.cc, computed by the package cryptography."""

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY = bytes(range(32))
PLAIN = bytes(i * 7 % 256 for i in range(1000))


def show(name, key, message, text):
    """The first and last 8 bytes of the ciphertext, and the tag."""
    nonce = text.to_bytes(4, "little") + message.to_bytes(8, "little")
    sealed = AESGCM(key).encrypt(nonce, PLAIN, None)
    print(name, sealed[:8].hex(), sealed[992:1000].hex(), sealed[1000:].hex())


show("message 3, text 1:", KEY, 3, 1)
NEXT_KEY = HKDF(hashes.SHA256(), 32, b"tessera messages 1", b"next key").derive(KEY)
show("message 2, text 0, next key:", NEXT_KEY, 2, 0)
