// Maps a whole chunk of a holder on this host: the holder's memory, read-only, instead of a copy.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call/exchange.h"
#include "client/calls.h"
#include "client/holders/link_table.h"
#include "transport/wire.h"

namespace ckv {

// Checks the memory behind `fd`, then maps it. It has the tensors of a chunk of `chunk_tokens`
// tokens; the holder reports `bytes` bytes. The memory must be sealed, because the holder
// is not trusted. Memory that shrinks would end this process at its next read (SIGBUS). Memory that
// is still written to would change during reads.
//   InvalidArgument     the chunk has another size, or the memory is too short or not sealed.
//   ResourceExhausted   this process cannot map more memory.
absl::StatusOr<MappedChunk> MapDescriptor(int fd, uint64_t bytes, const Geometry& geometry,
                                          uint32_t chunk_tokens);

// One attempt of Requester::Map, over a call context's links and exchange.
absl::StatusOr<MappedChunk> MapChunk(const MapCall& call, LinkTable& links, Exchange& exchange,
                                     Clock& clock);

}  // namespace ckv
