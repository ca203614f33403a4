// The least that TCP costs on this machine: bare sends and receives between two threads.

#pragma once

#include <cstddef>
#include <span>

#include "transport/socket.h"

namespace ckv::bench {

// Both ends of a connection over loopback, without Nagle's delay.
struct TcpPair {
  UniqueFd a, b;
};
TcpPair ConnectTcp();

// Spin until all bytes are moved; false at the end of the stream.
bool SendWhole(int fd, std::span<const std::byte> bytes);
bool ReceiveWhole(int fd, std::span<std::byte> bytes);
// The same, but asleep in the kernel while nothing moves.
bool SendBlocking(int fd, std::span<const std::byte> bytes);
bool ReceiveBlocking(int fd, std::span<std::byte> bytes);
// Receives the available bytes and returns their number; 0 for nothing.
size_t ReceiveReady(int fd, std::span<std::byte> bytes);

}  // namespace ckv::bench
