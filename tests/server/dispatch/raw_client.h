// A requester made of bare frames, for tests of the holder: it can say what a real one never would.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/bf16.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "tests/attention/reference.h"
#include "tests/support/soon.h"
#include "tests/support/test_corpus.h"
#include "transport/control.h"
#include "transport/fabric.h"
#include "transport/wire_attend.h"

namespace ckv::test {

// What one piece of a request attends: a handle, and indices if it is a selection.
struct RawPiece {
  uint32_t handle = 0;
  uint32_t copy = 0;
  std::optional<std::vector<int32_t>> indices = {};  // [ceil(rows / group_rows)][k]
  uint32_t k = 0;
  uint32_t group_rows = 1;
};

// The body of an attend request, and the header's fields that follow from it.
struct RawAttend {
  uint32_t layer = 0;
  uint32_t row_count = 0;
  uint8_t flags = 0;
  std::vector<uint16_t> rows = {};  // bf16 [copies][row_count][d_qk]
  std::vector<RawPiece> pieces = {};
  bool per_piece = false;  // each piece is a partial of its own
};

struct RawPartial {
  std::vector<float> o;  // [row_count][d_v]
  std::vector<float> m;
  std::vector<float> l;

  friend bool operator==(const RawPartial&, const RawPartial&) = default;
};

// Writes the request at the start of `slot` with `header`'s version, ids and deadline; returns its
// bytes. It has one segment.
inline uint32_t EncodeAttend(const RawAttend& attend, uint32_t d_qk, RequestHeader header,
                             std::span<std::byte> slot) {
  std::vector<PieceEntry> entries;
  std::vector<int32_t> indices;
  for (const RawPiece& piece : attend.pieces) {
    PieceEntry entry = {.handle = piece.handle,
                        .ordinal = static_cast<uint32_t>(entries.size()),
                        .partial = attend.per_piece ? static_cast<uint32_t>(entries.size()) : 0,
                        .copy = piece.copy};
    entry.group_rows = piece.group_rows;
    if (piece.indices.has_value()) {
      entry.index_begin = static_cast<uint32_t>(indices.size());
      entry.k = piece.k;
      indices.insert(indices.end(), piece.indices->begin(), piece.indices->end());
    }
    entries.push_back(entry);
  }
  const auto copy_count = static_cast<uint16_t>(attend.rows.size() / attend.row_count / d_qk);
  const uint64_t stored_rows = uint64_t{copy_count} * attend.row_count;
  header.kind = WireKind::kAttend;
  header.flags = attend.flags;
  header.layer = static_cast<uint16_t>(attend.layer);
  header.row_count = attend.row_count;
  header.segment_count = 1;
  header.piece_count = static_cast<uint32_t>(entries.size());
  header.index_count = static_cast<uint32_t>(indices.size());
  const AttendLayout layout =
      LayOutAttend(1, header.piece_count, stored_rows, header.index_count, d_qk);
  CKV_CHECK(layout.total_bytes <= slot.size());
  header.body_bytes = static_cast<uint32_t>(layout.total_bytes - sizeof(header));
  EncodeHeader(header, slot);
  std::memset(slot.data() + sizeof(header), 0, header.body_bytes);
  const SegmentEntry segment = {.row_count = attend.row_count,
                                .piece_count = header.piece_count,
                                .partial_count = attend.per_piece ? header.piece_count : 1,
                                .copy_count = copy_count};
  std::memcpy(slot.data() + layout.segments, &segment, sizeof(segment));
  std::memcpy(slot.data() + layout.pieces, entries.data(), entries.size() * sizeof(PieceEntry));
  std::memcpy(slot.data() + layout.rows, attend.rows.data(), attend.rows.size() * 2);
  if (!indices.empty())
    std::memcpy(slot.data() + layout.indices, indices.data(), indices.size() * 4);
  return static_cast<uint32_t>(layout.total_bytes);
}

// A reply, copied out of its slot.
struct RawReply {
  ReplyHeader header;
  std::vector<std::byte> body;

  absl::Status status() const {
    return absl::Status(static_cast<absl::StatusCode>(header.code),
                        std::string(reinterpret_cast<const char*>(body.data()), body.size()));
  }

  // Every partial of an attend reply, o as f32 whatever its dtype.
  std::vector<RawPartial> Partials(uint32_t d_v) const {
    const bool f32 = (header.flags & kFlagPartialF32) != 0;
    const size_t rows = header.row_count;
    const PartialLayout layout = LayOutPartial(header.row_count, d_v, f32);
    CKV_CHECK(body.size() == header.partial_count * layout.total_bytes);
    std::vector<RawPartial> partials(header.partial_count);
    for (size_t p = 0; p < partials.size(); ++p) {
      const std::byte* base = body.data() + p * layout.total_bytes;
      RawPartial& partial = partials[p];
      partial.o.resize(rows * d_v);
      partial.m.resize(rows);
      partial.l.resize(rows);
      std::memcpy(partial.m.data(), base + layout.m, rows * 4);
      std::memcpy(partial.l.data(), base + layout.l, rows * 4);
      if (f32) {
        std::memcpy(partial.o.data(), base + layout.o, rows * d_v * 4);
        continue;
      }
      std::vector<uint16_t> bf16(rows * d_v);
      std::memcpy(bf16.data(), base + layout.o, bf16.size() * 2);
      for (size_t i = 0; i < bf16.size(); ++i) partial.o[i] = FloatFromBf16(bf16[i]);
    }
    return partials;
  }
};

inline RawReply CopyReply(const RequestLane& lane, const Completion& completion) {
  const std::span<const std::byte> slot = lane.reply(completion.slot).first(completion.bytes);
  const absl::StatusOr<ReplyHeader> header = DecodeReplyHeader(slot);
  CKV_CHECK(header.ok());
  return {*header, {slot.begin() + sizeof(ReplyHeader), slot.end()}};
}

// A session with its lanes, all used by one thread at a time.
class RawClient {
 public:
  struct Options {
    LaneShape shape = {.slot_count = 8, .request_bytes_max = 1u << 20, .reply_bytes_max = 1u << 20};
    uint32_t lane_count = 1;
    std::string tenant = {};
    std::string host_identity = HostIdentity();
  };

  static absl::StatusOr<std::unique_ptr<RawClient>> Open(HolderControl& holder, Fabric& fabric,
                                                         const Geometry& geometry,
                                                         const Options& options) {
    std::unique_ptr<RawClient> client(new RawClient(holder, geometry));
    std::vector<std::unique_ptr<Dialer>> dialers;
    SessionOffer offer = {.geometry = geometry,
                          .tenant = options.tenant,
                          .requester = "raw",
                          .host_identity = options.host_identity,
                          .shape = options.shape,
                          .fabrics = {{.fabric = fabric.kind(), .offers = {}}}};
    for (uint32_t i = 0; i < options.lane_count; ++i) {
      CKV_ASSIGN_OR_RETURN(std::unique_ptr<Dialer> dialer, fabric.Dial(options.shape));
      offer.fabrics[0].offers.push_back(dialer->offer());
      dialers.push_back(std::move(dialer));
    }
    CKV_ASSIGN_OR_RETURN(client->answer_, holder.OpenSession(offer, kInstantMax));
    for (uint32_t i = 0; i < options.lane_count; ++i) {
      CKV_ASSIGN_OR_RETURN(std::unique_ptr<RequestLane> lane,
                           dialers[i]->Connect(client->answer_.answers[i], Soon()));
      client->lanes_.push_back(std::move(lane));
    }
    return client;
  }

  SessionId session() const { return answer_.session; }
  Epoch epoch() const { return answer_.epoch; }
  RequestLane& lane(size_t i = 0) { return *lanes_[i]; }
  void DropLanes() { lanes_.clear(); }

  // Handles of the chunks, in order; 0 where there is none.
  std::vector<uint32_t> Resolve(const TestCorpus& corpus) {
    std::vector<ChunkId> ids;
    for (const TestChunk& chunk : corpus.chunks) ids.push_back(chunk.info.id);
    const auto resolved = holder_.ResolveChunks(session(), ids, kInstantMax);
    CKV_CHECK(resolved.ok());
    std::vector<uint32_t> handles;
    for (const auto& handle : *resolved) handles.push_back(handle ? handle->handle.value : 0);
    return handles;
  }

  // A header with this session's ids and a deadline far away.
  RequestHeader Header() {
    RequestHeader header;
    header.request_id = ++last_request_id_;
    header.epoch = epoch().value;
    header.session = session().value;
    header.deadline_us = 60'000'000;
    return header;
  }

  // Posts without waiting; returns the request's id.
  uint64_t Post(const RawAttend& attend, const RequestHeader& header, size_t lane = 0) {
    const std::optional<uint32_t> slot = lanes_[lane]->Acquire();
    CKV_CHECK(slot.has_value());
    const uint32_t bytes =
        EncodeAttend(attend, geometry_.d_qk, header, lanes_[lane]->request(*slot));
    CKV_CHECK(lanes_[lane]->Post(*slot, bytes).ok());
    return header.request_id;
  }
  uint64_t PostBytes(std::span<const std::byte> bytes, size_t lane = 0) {
    const std::optional<uint32_t> slot = lanes_[lane]->Acquire();
    CKV_CHECK(slot.has_value());
    std::memcpy(lanes_[lane]->request(*slot).data(), bytes.data(), bytes.size());
    CKV_CHECK(lanes_[lane]->Post(*slot, static_cast<uint32_t>(bytes.size())).ok());
    return *slot;
  }

  // The next reply of the lane, in order of arrival.
  //   Unavailable...      what the lane's status says.
  absl::StatusOr<RawReply> Await(size_t lane = 0) {
    const Instant deadline = Soon();
    Completion completion;
    while (lanes_[lane]->Poll({&completion, 1}) == 0) {
      CKV_RETURN_IF_ERROR(lanes_[lane]->status());
      if (Clock::Real()->Now() > deadline) return absl::DeadlineExceededError("no reply");
      std::this_thread::yield();
    }
    RawReply reply = CopyReply(*lanes_[lane], completion);
    lanes_[lane]->Release(completion.slot);
    return reply;
  }

  absl::StatusOr<RawReply> Call(const RawAttend& attend, const RequestHeader& header) {
    Post(attend, header);
    return Await();
  }
  absl::StatusOr<RawReply> Call(const RawAttend& attend) { return Call(attend, Header()); }

  // Posts a header and a body as they are.
  absl::StatusOr<RawReply> CallBytes(RequestHeader header, std::span<const std::byte> body) {
    header.body_bytes = static_cast<uint32_t>(body.size());
    std::vector<std::byte> bytes(sizeof(header) + body.size());
    EncodeHeader(header, bytes);
    std::memcpy(bytes.data() + sizeof(header), body.data(), body.size());
    PostBytes(bytes);
    return Await();
  }

 private:
  RawClient(HolderControl& holder, const Geometry& geometry)
      : holder_(holder), geometry_(geometry) {}

  HolderControl& holder_;
  const Geometry geometry_;
  SessionAnswer answer_;
  std::vector<std::unique_ptr<RequestLane>> lanes_;
  uint64_t last_request_id_ = 0;
};

// The fp64 answer of one piece over the rows of one chunk.
inline std::vector<reference::Partial> ReferencePiece(const Geometry& geometry,
                                                      const RawAttend& attend,
                                                      const RawPiece& piece,
                                                      const std::vector<uint16_t>& rows) {
  const uint32_t d_qk = geometry.d_qk;
  AttentionPiece reference_piece;
  reference_piece.q = {attend.rows.data() + size_t{piece.copy} * attend.row_count * d_qk,
                       attend.row_count, d_qk};
  reference_piece.rows = {reinterpret_cast<const std::byte*>(rows.data()),
                          static_cast<uint32_t>(rows.size() / d_qk), geometry.row_bytes()};
  static constexpr int32_t kNone = -1;
  if (piece.indices.has_value()) {
    reference_piece.selection = {piece.k == 0 ? &kNone : piece.indices->data(), piece.k,
                                 piece.group_rows};
  }
  return reference::Attend(AttentionShape::Of(geometry), reference_piece);
}

}  // namespace ckv::test
