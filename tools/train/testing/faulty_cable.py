#!/usr/bin/env python3
"""Runs commands on two simulated hosts (//tools/launch:two_hosts.sh) whose cable fails on demand.

    unshare -Urnm --kill-child bash two_hosts.sh python3 faulty_cable.py

Each line of standard input is an object of JSON: {"host": 0, "command": [...], "output": "FILE"} starts a command in the background;
{"delay": 0.05, "loss": 0.1, "duplicate": 0.1, "cut": false, "forge": false, "seed": 7} sets what happens to the frames from now on: each
is delayed by up to `delay` seconds, so that their order changes. With "forge" two pairs of bytes change places in one long frame, which
its checksum does not show. {"record": "FILE"} writes all frames to a file. Once all commands have ended, their exit codes are printed as
a list.
"""

import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def plug(host):
    """Replaces a host's end of the virtual cable by one whose frames pass through this process."""
    wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(wire, TUNSETIFF, struct.pack("16sH22x", b"wire%d" % host, IFF_TAP | IFF_NO_PI))
    inside = ["-n", "host%d" % host]
    ip("link", "set", "wire%d" % host, "netns", "host%d" % host)
    ip(*inside, "link", "set", "wire%d" % host, "name", "cable%d" % host)
    ip(*inside, "addr", "add", "10.77.0.%d/24" % (host + 1), "dev", "cable%d" % host)
    ip(*inside, "link", "set", "cable%d" % host, "up")
    return wire


def forge(frame):
    """Exchanges two 16-bit words near the end of a frame, which leaves the checksum of TCP as it is."""
    forged, end = bytearray(frame), len(frame) // 2 * 2
    for at in range(end - 4, end - 400, -2):
        if forged[at:at + 2] != forged[at + 2:at + 4]:
            forged[at:at + 4] = forged[at + 2:at + 4] + forged[at:at + 2]
            break
    return bytes(forged)


class Cable:
    def __init__(self):
        ip("-n", "host0", "link", "del", "cable0")  # And the other end with it.
        self.wires = [plug(0), plug(1)]
        self.faults = {}
        self.record = None
        self.random = random.Random(0)
        self.due = []  # A heap of (time, number, host, frame).
        self.number = 0

    def set(self, faults):
        if "record" in faults:
            self.record = open(faults["record"], "wb")
            return
        self.faults = faults
        self.random = random.Random(faults.get("seed"))

    def take(self, host):
        """Takes the frames that a host sent."""
        while True:
            try:
                frame = os.read(self.wires[host], 65536)
            except OSError:
                return
            if self.record:
                self.record.write(frame)
            if self.faults.get("forge") and len(frame) > 1400:
                frame = forge(frame)
                self.faults["forge"] = False
            if self.faults.get("cut") or self.random.random() < self.faults.get("loss", 0):
                continue
            for _ in range(2 if self.random.random() < self.faults.get("duplicate", 0) else 1):
                self.number += 1
                at = time.monotonic() + self.random.uniform(0, self.faults.get("delay", 0))
                heapq.heappush(self.due, (at, self.number, 1 - host, frame))

    def deliver(self):
        """Delivers the frames that are due. Returns the seconds until the next one, at most 0.02."""
        while self.due and self.due[0][0] <= time.monotonic():
            _, _, host, frame = heapq.heappop(self.due)
            try:
                os.write(self.wires[host], frame)
            except OSError:
                pass  # Like a frame for which there is no room.
        return min(0.02, max(0, self.due[0][0] - time.monotonic())) if self.due else 0.02


def main():
    cable, commands, text, is_open = Cable(), [], b"", True
    while is_open or any(command.poll() is None for command in commands):
        ready, _, _ = select.select(cable.wires + [0] * is_open, [], [], cable.deliver())
        for host, wire in enumerate(cable.wires):
            if wire in ready:
                cable.take(host)
        if commands and all(command.poll() is not None for command in commands):
            break
        if 0 not in ready:
            continue
        read = os.read(0, 65536)
        is_open = bool(read)
        *lines, text = (text + read).split(b"\n")
        for line in map(json.loads, lines):
            if "command" not in line:
                cable.set(line)
                continue
            with open(line["output"], "w") as output:
                commands.append(subprocess.Popen(["ip", "netns", "exec", "host%d" % line["host"], *line["command"]],
                                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output))
    print(json.dumps([command.wait() for command in commands]))


if __name__ == "__main__":
    main()
