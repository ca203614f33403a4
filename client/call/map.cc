// Requests the descriptor of a chunk's memory from a holder over shm, checks it, and maps it.
//
// MapChunk works on the thread of the call. It chooses a holder, brings up its link, which must be
// shm, and finds the handle. It then posts one request, and waits for the reply, which carries the
// descriptor. MapDescriptor checks the layout, the size and the seals before it maps. The mapping
// ends with the MappedChunk.

#include "client/call/map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/holders/holder_peer.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status CheckSeals(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: the memory cannot be sealed (%s)", strerror(errno)));
  }
  const bool size_stays = (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0;
  if (!size_stays || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "map: the memory is not sealed against writing and changes of size: seals 0x%x", seals));
  }
  return absl::OkStatus();
}

absl::Status CheckCall(const MapCall& call, const Clock& clock) {
  if (clock.Now() >= call.deadline)
    return absl::DeadlineExceededError("map: the deadline had passed before anything was sent");
  if (call.corpus == nullptr) return absl::InvalidArgumentError("map: no corpus");
  if (call.chunk >= call.corpus->chunks.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: chunk %d of %d", call.chunk, call.corpus->chunks.size()));
  }
  if (call.corpus->chunks[call.chunk].token_count == 0)
    return absl::InvalidArgumentError(absl::StrFormat("map: chunk %d has no tokens", call.chunk));
  return absl::OkStatus();
}

// Posts the only request of the call.
absl::Status Post(HolderLink& link, uint32_t handle, Clock& clock, Exchange& exchange) {
  RequestLane& lane = link.lane();
  MapEntry entry;
  entry.handle = handle;
  RequestHeader header;
  header.kind = WireKind::kMap;
  header.body_bytes = sizeof(entry);
  if (lane.shape().request_bytes_max < sizeof(header) + sizeof(entry) ||
      lane.shape().reply_bytes_max < sizeof(ReplyHeader) + sizeof(MapReply)) {
    return absl::InvalidArgumentError("map: the lane's slots are too small for it");
  }
  const std::optional<uint32_t> slot = lane.Acquire();
  CKV_CHECK(slot.has_value());  // EnsureUp leaves one free, and nothing else uses this lane
  std::memcpy(lane.request(*slot).data() + sizeof(header), &entry, sizeof(entry));
  return exchange.Post(exchange.Add(link), *slot, header, /*tag=*/0, clock.Now());
}

absl::StatusOr<MappedChunk> Accept(const MapCall& call, const Exchange::Reply& reply,
                                   const HolderLink& link) {
  RequestLane& lane = link.lane();
  ExpectedReply expected;
  expected.request_id = reply.header.request_id;
  expected.kind = WireKind::kMap;
  CKV_RETURN_IF_ERROR(
      CheckReplyForHint(reply.header, reply.bytes.subspan(sizeof(ReplyHeader)), expected));
  CKV_ASSIGN_OR_RETURN(const MapReply body, DecodeMapReply(reply.bytes));
  const auto fd = lane.TakeDescriptor(reply.slot);
  if (absl::IsNotFound(fd.status()))
    return absl::InvalidArgumentError("map: the reply has no descriptor");
  if (!fd.ok()) return Annotate(fd.status(), "map");
  return MapDescriptor(fd->get(), body.bytes, call.corpus->geometry,
                       call.corpus->chunks[call.chunk].token_count);
}

// Requests the memory and maps it, over a lane that is up.
absl::StatusOr<MappedChunk> MapOverLane(const MapCall& call, HolderLink& link, uint32_t handle,
                                        Clock& clock, Exchange& exchange) {
  std::optional<MappedChunk> mapped;
  const auto accept = [&](const Exchange::Reply& reply) -> absl::Status {
    CKV_ASSIGN_OR_RETURN(mapped, Accept(call, reply, link));
    return absl::OkStatus();
  };
  exchange.Start(call.deadline, call.may_be_refused);
  CKV_RETURN_IF_ERROR(Post(link, handle, clock, exchange));
  while (true) {
    CKV_ASSIGN_OR_RETURN(const bool came, exchange.Collect(accept));
    if (mapped) return *std::move(mapped);
    CKV_RETURN_IF_ERROR(exchange.EndRound(came));
  }
}

}  // namespace

MappedChunk::MappedChunk(MappedChunk&& other) noexcept { *this = std::move(other); }

MappedChunk& MappedChunk::operator=(MappedChunk&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(layout_, other.layout_);
  std::swap(token_count_, other.token_count_);
  return *this;
}

MappedChunk::~MappedChunk() {
  if (!memory_.empty()) munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

std::span<const std::byte> MappedChunk::tensor(uint32_t t) const {
  CKV_CHECK(t < layout_.tensor_count());
  return memory_.subspan(layout_.begin(t), layout_.bytes(t));
}

absl::StatusOr<MappedChunk> MapDescriptor(int fd, uint64_t bytes, const Geometry& geometry,
                                          uint32_t chunk_tokens) {
  const ChunkLayout layout(geometry, chunk_tokens);
  if (bytes != layout.total_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: %d bytes, the chunk has %d", bytes, layout.total_bytes()));
  }
  struct stat file = {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < 0 ||
      static_cast<uint64_t>(file.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: the memory has %d bytes, the chunk has %d", file.st_size, bytes));
  }
  CKV_RETURN_IF_ERROR(CheckSeals(fd));
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("map: %d bytes cannot be mapped (%s)", bytes, strerror(errno)));
  }
  MappedChunk chunk;
  chunk.memory_ = {static_cast<const std::byte*>(memory), bytes};
  chunk.layout_ = layout;
  chunk.token_count_ = chunk_tokens;
  return chunk;
}

absl::StatusOr<MappedChunk> MapChunk(const MapCall& call, LinkTable& links, Exchange& exchange,
                                     Clock& clock) {
  CKV_RETURN_IF_ERROR(CheckCall(call, clock));
  CKV_ASSIGN_OR_RETURN(LinkTable::ChunkLinks * chunk_links,
                       links.LinksFor(call.corpus, {.primitive = Primitive::kFetch}));
  // The nearest replica, even if its session must be opened: only shm passes memory.
  HolderLink& link = links.Choose(*chunk_links, call.chunk, /*must_be_chosen=*/true);
  if (absl::Status status = links.EnsureUp(link, call.deadline); !status.ok())
    return Annotate(status, link.peer().Describe());
  if (link.lane().kind() != FabricKind::kShm) {
    return absl::UnimplementedError(absl::StrFormat(
        "%s is spoken to over %s, and only shm passes memory: fetch its rows instead",
        link.peer().Describe(), FabricName(link.lane().kind())));
  }
  const auto handle = links.HandleOf(*chunk_links, call.chunk, call.deadline);
  if (!handle.ok()) return links.Fail(link, handle.status());
  exchange.Clear();
  (void)exchange.Add(link);
  auto mapped = MapOverLane(call, link, *handle, clock, exchange);
  exchange.GiveUp();
  return mapped;
}

}  // namespace ckv
