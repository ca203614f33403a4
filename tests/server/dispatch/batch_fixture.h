// A batch's surroundings without a dispatcher: the test decides what has arrived when, and the
// time.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "server/batch/batch.h"
#include "store/memory/arena.h"
#include "tests/server/dispatch/raw_client.h"
#include "tests/support/test_corpus.h"

namespace ckv::test {

inline constexpr Epoch kBatchEpoch = {5};
inline constexpr uint32_t kBatchSize = 16;

// Requests of every kind: dense and selected, one chunk and several, merged here and not, bf16 and
// f32, one and several position offsets, all layers.
inline std::vector<RawAttend> Mixture(const Geometry& geometry,
                                      const std::vector<uint32_t>& handles, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<RawAttend> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    RawAttend attend;
    attend.layer = i % geometry.layers;
    attend.row_count = 1 + rng() % 20;
    attend.flags = i % 2 == 0 ? kFlagPartialF32 : 0;
    attend.per_piece = i % 3 == 0;
    const uint32_t copies = 1 + i % 2;
    attend.rows = RandomBf16(size_t{copies} * attend.row_count * geometry.d_qk, rng, 2);
    const size_t piece_count = 1 + rng() % handles.size();
    for (size_t p = 0; p < piece_count; ++p) {
      RawPiece piece = {.handle = handles[p], .copy = static_cast<uint32_t>(p) % copies};
      if (rng() % 3 == 0) {
        piece.k = 1 + rng() % 8;
        piece.group_rows = 1 + rng() % attend.row_count;
        const size_t groups = (attend.row_count + piece.group_rows - 1) / piece.group_rows;
        piece.indices.emplace();
        for (size_t j = 0; j < groups * piece.k; ++j) {
          piece.indices->push_back(static_cast<int32_t>(rng() % 80) - 2);
        }
      }
      attend.pieces.push_back(std::move(piece));
    }
    requests.push_back(std::move(attend));
  }
  return requests;
}

class BatchFixture : public testing::Test {
 protected:
  // Both ends of one lane, and the session it belongs to.
  struct Peer {
    Session* session = nullptr;
    std::unique_ptr<RequestLane> request;
    std::unique_ptr<ServeLane> serve;
    std::vector<uint32_t> handles;
  };

  void SetUp() override {
    auto arena = Arena::Create(64u << 20);
    ASSERT_TRUE(arena.ok());
    arena_ = *std::move(arena);
    table_ = std::make_unique<ChunkTable>(arena_.get(), 1024);
    auto listener = fabric_->Listen({});
    ASSERT_TRUE(listener.ok());
    listener_ = *std::move(listener);
    lease_.Grant(kBatchEpoch, clock_.Now() + std::chrono::seconds(3600));
    batch_ = NewBatch({.request_count_max = kBatchSize});
  }

  std::unique_ptr<Batch> NewBatch(const BatchOptions& options, Backend& backend = *Backend::Cpu()) {
    auto tools = BatchTools::Make(backend, /*thread_count=*/1);
    CKV_CHECK(tools.ok());
    return std::make_unique<Batch>(options, *std::move(tools), &clock_, table_.get(), &lease_,
                                   &counters_);
  }

  Peer Connect(const TestCorpus& corpus, const LaneShape& shape) {
    SessionOffer offer;
    offer.geometry = corpus.geometry;
    offer.shape = shape;
    const auto opened = sessions_.Open(offer, 1, kBatchEpoch, kInstantMax);
    const auto dialer = fabric_->Dial(shape);
    const auto answer = listener_->Invite((*dialer)->offer(), shape, "",
                                          SessionTable::LaneTag(*opened, 0), kInstantMax);
    Peer peer;
    peer.request = *(*dialer)->Connect(*answer, kInstantMax);
    std::optional<AcceptedLane> accepted = listener_->Accept();
    CKV_CHECK(accepted.has_value());
    peer.session = sessions_.Adopt(accepted->tag);
    peer.serve = std::move(accepted->lane);
    std::vector<SessionTable::Found> found;
    for (const TestChunk& chunk : corpus.chunks) {
      found.push_back({chunk.info.id, *table_->Find(chunk.info.id, corpus.geometry)});
    }
    const auto handles = sessions_.AssignHandles(opened->id, found);
    for (const ChunkHandle handle : *handles) peer.handles.push_back(handle.value);
    return peer;
  }

  RequestHeader Header(const Peer& peer) {
    RequestHeader header;
    header.request_id = ++last_request_id_;
    header.epoch = kBatchEpoch.value;
    header.session = peer.session->id.value;
    header.deadline_us = 1'000'000;
    return header;
  }

  uint64_t Post(Peer& peer, const RawAttend& attend) {
    const RequestHeader header = Header(peer);
    const uint32_t slot = *peer.request->Acquire();
    const uint32_t bytes =
        EncodeAttend(attend, peer.session->geometry.d_qk, header, peer.request->request(slot));
    CKV_CHECK(peer.request->Post(slot, bytes).ok());
    return header.request_id;
  }
  uint64_t PostProbe(Peer& peer) {
    const RequestHeader header = Header(peer);
    const uint32_t slot = *peer.request->Acquire();
    EncodeHeader(header, peer.request->request(slot));
    CKV_CHECK(peer.request->Post(slot, sizeof(header)).ok());
    return header.request_id;
  }

  // The next request that has arrived, as the dispatcher would hand it to the batch.
  ReadyRequest Take(Peer& peer) {
    Arrival arrival;
    CKV_CHECK(peer.serve->Poll({&arrival, 1}) == 1);
    ReadyRequest ready = {.lane = peer.serve.get(),
                          .session = peer.session,
                          .slot = arrival.slot,
                          .bytes = arrival.bytes,
                          .header = {},
                          .arrived = clock_.Now(),
                          .cold_rows = nullptr};
    const auto header = DecodeRequestHeader(ready.frame());
    CKV_CHECK(header.ok());
    ready.header = *header;
    return ready;
  }

  void Answer(uint32_t waiting_count) {
    batch_->Compute();
    batch_->Reply(waiting_count);
  }

  RawReply Reply(Peer& peer) {
    Completion completion;
    CKV_CHECK(peer.request->Poll({&completion, 1}) == 1);
    RawReply reply = CopyReply(*peer.request, completion);
    peer.request->Release(completion.slot);
    return reply;
  }

  ManualClock clock_;
  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(&clock_);
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ChunkTable> table_;
  SessionTable sessions_{16, uint64_t{1} << 32};
  std::unique_ptr<Listener> listener_;
  LeaseGate lease_;
  ServeCounters counters_;
  std::unique_ptr<Batch> batch_;
  uint64_t last_request_id_ = 0;
};

inline constexpr LaneShape kBatchShape = {
    .slot_count = 16, .request_bytes_max = 1u << 18, .reply_bytes_max = 1u << 18};

}  // namespace ckv::test
