#include "client/map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/holder_peer.h"
#include "client/retry.h"
#include "proto/status.h"

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

// One request under way, and its reply.
class Exchange {
 public:
  Exchange(HolderLink& link, LaneWait& wait, Clock& clock, RouteCounters& counters)
      : link_(link), wait_(wait), clock_(clock), counters_(counters) {}
  ~Exchange() {
    if (state_ == State::kArrived) link_.lane().Release(slot_);
    if (state_ != State::kPosted) return;
    link_.peer().in_flight.fetch_sub(1, std::memory_order_relaxed);
    // Whether a slot that had a strange reply is done is not known for sure, and a lane holds us to
    // that: it goes.
    if (strange_) {
      link_.Close();
    } else {
      link_.lane().Abandon(slot_);
    }
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  absl::Status Post(uint32_t handle, Instant deadline);
  // The reply, until this is destroyed; its header is checked.
  absl::StatusOr<std::span<const std::byte>> Await(Instant deadline);
  uint32_t slot() const { return slot_; }

 private:
  enum class State { kIdle, kPosted, kArrived };

  // Nothing: not the reply that is awaited.
  std::optional<absl::Status> Judge(const Completion& done);

  HolderLink& link_;
  LaneWait& wait_;
  Clock& clock_;
  RouteCounters& counters_;
  State state_ = State::kIdle;
  bool strange_ = false;  // a reply came that was not the one awaited
  uint32_t slot_ = 0;
  uint64_t request_id_ = 0;
  std::span<const std::byte> reply_;
};

absl::Status Exchange::Post(uint32_t handle, Instant deadline) {
  RequestLane& lane = link_.lane();
  MapEntry entry;
  entry.handle = handle;
  RequestHeader header;
  header.kind = WireKind::kMap;
  header.body_bytes = sizeof(entry);
  const uint32_t bytes = sizeof(header) + sizeof(entry);
  if (lane.shape().request_bytes_max < bytes ||
      lane.shape().reply_bytes_max < sizeof(ReplyHeader) + sizeof(MappedLayout)) {
    return absl::InvalidArgumentError("map: the lane's slots are too small for it");
  }
  const std::optional<uint32_t> slot = lane.Acquire();
  // EnsureUp leaves one free, and nobody else uses this lane.
  if (!slot) return absl::UnavailableError("map: no slot of the lane is free");
  slot_ = *slot;
  header.request_id = request_id_ = link_.NextRequestId();
  header.epoch = link_.epoch().value;
  header.session = link_.session().value;
  header.deadline_us = RemainingUs(deadline, clock_.Now());
  const std::span<std::byte> request = lane.request(slot_);
  std::memcpy(request.data() + sizeof(header), &entry, sizeof(entry));
  EncodeHeader(header, request);
  CKV_RETURN_IF_ERROR(lane.Post(slot_, bytes));
  state_ = State::kPosted;
  link_.peer().in_flight.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> Exchange::Await(Instant deadline) {
  RequestLane* const lane = &link_.lane();
  wait_.Begin(1);
  while (true) {
    Completion done;
    if (lane->Poll({&done, 1}) == 1) {
      const std::optional<absl::Status> verdict = Judge(done);
      if (!verdict) continue;
      wait_.Came();
      if (!verdict->ok()) return *verdict;
      return reply_;
    }
    CKV_RETURN_IF_ERROR(lane->status());
    CKV_RETURN_IF_ERROR(wait_.Pause({&lane, 1}, deadline));
  }
}

std::optional<absl::Status> Exchange::Judge(const Completion& done) {
  RequestLane& lane = link_.lane();
  if (done.slot != slot_) {
    counters_.discarded.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  reply_ = lane.reply(slot_).first(std::min(done.bytes, lane.shape().reply_bytes_max));
  const auto header = DecodeReplyHeader(reply_);
  if (!header.ok() || header->request_id != request_id_) {
    counters_.discarded.fetch_add(1, std::memory_order_relaxed);
    strange_ = true;
    if (header.ok()) return std::nullopt;
    return header.status();
  }
  state_ = State::kArrived;
  link_.peer().in_flight.fetch_sub(1, std::memory_order_relaxed);
  ExpectedReply expected;
  expected.request_id = request_id_;
  expected.kind = WireKind::kMap;
  return CheckReplyForHint(*header, reply_.subspan(sizeof(ReplyHeader)), expected);
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

// Over a lane that is up.
absl::StatusOr<MappedChunk> MapOverLane(const MapCall& call, HolderLink& link, uint32_t handle,
                                        LaneWait& wait, Clock& clock, RouteCounters& counters) {
  Exchange exchange(link, wait, clock, counters);
  CKV_RETURN_IF_ERROR(exchange.Post(handle, call.deadline));
  CKV_ASSIGN_OR_RETURN(const std::span<const std::byte> reply, exchange.Await(call.deadline));
  CKV_ASSIGN_OR_RETURN(const MappedLayout layout, DecodeMapReply(reply));
  const auto fd = link.lane().TakeDescriptor(exchange.slot());
  if (absl::IsNotFound(fd.status()))
    return absl::InvalidArgumentError("map: no descriptor came with the reply");
  if (!fd.ok()) return Annotate(fd.status(), "map");
  return MapDescriptor(fd->get(), layout, call.corpus->geometry,
                       call.corpus->chunks[call.chunk].token_count);
}

}  // namespace

MappedChunk::MappedChunk(MappedChunk&& other) noexcept { *this = std::move(other); }

MappedChunk& MappedChunk::operator=(MappedChunk&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(layer_bytes_, other.layer_bytes_);
  std::swap(layer_stride_, other.layer_stride_);
  std::swap(layers_, other.layers_);
  std::swap(token_count_, other.token_count_);
  return *this;
}

MappedChunk::~MappedChunk() {
  if (!memory_.empty()) munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

std::span<const std::byte> MappedChunk::layer(uint32_t l) const {
  CKV_CHECK(l < layers_);
  return memory_.subspan(l * layer_stride_, layer_bytes_);
}

absl::StatusOr<MappedChunk> MapDescriptor(int fd, const MappedLayout& layout,
                                          const Geometry& geometry, uint32_t chunk_tokens) {
  const uint64_t layer_bytes = uint64_t{chunk_tokens} * geometry.row_bytes();
  if (layout.layers != geometry.layers || layout.layer_bytes != layer_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("map: %d layers of %d bytes, the chunk has %d of %d", layout.layers,
                        layout.layer_bytes, geometry.layers, layer_bytes));
  }
  struct stat file = {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < 0 ||
      static_cast<uint64_t>(file.st_size) < layout.total_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat("map: the memory has %d bytes, it says %d",
                                                      file.st_size, layout.total_bytes));
  }
  CKV_RETURN_IF_ERROR(CheckSeals(fd));
  void* const memory = mmap(nullptr, layout.total_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat("map: %d bytes cannot be mapped (%s)",
                                                        layout.total_bytes, strerror(errno)));
  }
  MappedChunk chunk;
  chunk.memory_ = {static_cast<const std::byte*>(memory), layout.total_bytes};
  chunk.layer_bytes_ = layer_bytes;
  chunk.layer_stride_ = layout.layer_stride_bytes;
  chunk.layers_ = layout.layers;
  chunk.token_count_ = chunk_tokens;
  return chunk;
}

absl::StatusOr<MappedChunk> MapChunk(const MapCall& call, Router& router, Clock& clock,
                                     RouteCounters& counters, bool* stale) {
  *stale = false;
  CKV_RETURN_IF_ERROR(CheckCall(call, clock));
  CKV_ASSIGN_OR_RETURN(LinkTable::Route * route,
                       router.links().RouteOf(call.corpus, {.primitive = Primitive::kFetch}));
  HolderLink& link = router.links().Ask(*route, call.chunk);
  if (absl::Status status = router.links().EnsureUp(link, call.deadline); !status.ok())
    return Annotate(status, link.peer().Describe());
  if (link.lane().kind() != FabricKind::kShm) {
    return absl::UnimplementedError(absl::StrFormat(
        "%s is spoken to over %s, and only shm passes memory: fetch its rows instead",
        link.peer().Describe(), FabricName(link.lane().kind())));
  }
  const auto handle = router.links().HandleOf(*route, call.chunk, call.deadline);
  if (!handle.ok()) {
    *stale = absl::IsNotFound(handle.status()) || absl::IsAborted(handle.status());
    return router.links().Fail(link, handle.status());
  }
  auto mapped = MapOverLane(call, link, *handle, router.wait(), clock, counters);
  if (mapped.ok()) return mapped;
  *stale = absl::IsNotFound(mapped.status()) || absl::IsAborted(mapped.status());
  return router.links().Fail(link, mapped.status());
}

}  // namespace ckv
