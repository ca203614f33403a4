// Maps a whole chunk of a holder on this host: its memory, read-only, instead of a copy of its
// rows.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/requester.h"
#include "client/route.h"
#include "transport/wire.h"

namespace ckv {

// What `fd` has to be for `chunk_tokens` rows of `geometry` to be read from it as `layout` says:
// checked, then mapped. A holder is not trusted: what it could shrink would end this process at the
// next read (SIGBUS), and what it could write would change under the reader.
//   InvalidArgument     the layout does not fit, the memory is too short, or not sealed.
//   ResourceExhausted   this process can map no more.
absl::StatusOr<MappedChunk> MapDescriptor(int fd, const MappedLayout& layout,
                                          const Geometry& geometry, uint32_t chunk_tokens);

// Requester::Map, without its retry, by an engine's router. `*stale` as in Router::Attend.
absl::StatusOr<MappedChunk> MapChunk(const MapCall& call, Router& router, Clock& clock,
                                     RouteCounters& counters, bool* stale);

}  // namespace ckv
