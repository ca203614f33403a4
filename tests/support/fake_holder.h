// A holder of one corpus that answers as a test says, with the directory that knows it.

#pragma once

#include <sched.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "proto/base/status.h"
#include "transport/control.h"
#include "transport/fabric.h"
#include "transport/wire_attend.h"

namespace ckv::test {

class FakeHolder : public DirectoryControl, public HolderControlFactory {
 public:
  // Answers one request of a kind other than probe: posts the reply of `slot`. Called by the
  // holder's thread.
  using Answer =
      std::function<void(const RequestHeader& header, ServeLane& lane, const Arrival& arrival)>;

  // `fabric` must outlive it, and requesters must not.
  FakeHolder(Fabric* fabric, Corpus corpus, Answer answer)
      : corpus_(std::move(corpus)), answer_(std::move(answer)), listener_(*fabric->Listen({})) {
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeHolder() override {
    stop_ = true;
    thread_.join();
  }

  // A reply of zeros with weight 1 to an attend request. Its kernel call, which it had to itself,
  // took `compute_ns`.
  void AnswerZeros(const RequestHeader& header, ServeLane& lane, uint32_t slot,
                   uint32_t compute_ns = 0) const {
    const size_t request_bytes = sizeof(header) + header.body_bytes;
    AttendRequest request;
    CKV_CHECK(DecodeAttendRequest(header, lane.request(slot).first(request_bytes), corpus_.geometry,
                                  request)
                  .ok());
    ReplyHeader reply;
    reply.version = header.version;
    reply.kind = header.kind;
    reply.flags = header.flags;
    reply.request_id = header.request_id;
    reply.epoch = header.epoch;
    reply.row_count = header.row_count;
    reply.partial_count = static_cast<uint16_t>(request.partial_count);
    reply.body_bytes = static_cast<uint32_t>(AttendReplyBytes(request, corpus_.geometry));
    reply.compute_ns = compute_ns;
    reply.batch_share = 255;
    std::byte* partial = lane.reply(slot).data() + sizeof(reply);
    std::memset(partial, 0, reply.body_bytes);
    const bool f32 = (header.flags & kFlagPartialF32) != 0;
    for (const AttendSegment& segment : request.segments) {
      const PartialLayout layout = LayOutPartial(segment.row_count, corpus_.geometry.d_v, f32);
      const std::vector<float> ones(segment.row_count, 1.0f);
      for (uint32_t i = 0; i < segment.partial_count; ++i, partial += layout.total_bytes)
        std::memcpy(partial + layout.l, ones.data(), ones.size() * sizeof(float));
    }
    EncodeHeader(reply, lane.reply(slot));
    lane.Post(slot, static_cast<uint32_t>(sizeof(reply) + reply.body_bytes)).IgnoreError();
  }

  absl::StatusOr<Corpus> GetCorpus(std::string_view, std::string_view, Instant) override {
    return corpus_;
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant) override {
    std::set<std::string> names;
    for (const ChunkPlacement& chunk : corpus_.chunks) {
      for (const HolderId& holder : chunk.holders()) names.insert(holder.name);
    }
    std::vector<Member> members;
    for (const std::string& name : names)
      members.push_back({{name}, MemberRole::kHolder, "inproc:" + name, {1}});
    return members;
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId&, std::string_view,
                                                  Instant) override {
    return absl::NotFoundError("not asked for here");
  }
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member&) override {
    return std::make_unique<Control>(this);
  }

 private:
  class Control final : public HolderControl {
   public:
    explicit Control(FakeHolder* holder) : holder_(holder) {}
    absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer,
                                              Instant deadline) override {
      SessionAnswer answer;
      answer.session = {1};
      answer.epoch = {1};
      answer.fabric = offer.fabrics.at(0).fabric;
      answer.fabrics = {answer.fabric};
      CKV_ASSIGN_OR_RETURN(
          std::string invited,
          holder_->listener_->Invite(offer.fabrics[0].offers.at(0), offer.shape, "", 0, deadline));
      answer.answers.push_back(std::move(invited));
      return answer;
    }
    absl::Status CloseSession(SessionId, Instant) override { return absl::OkStatus(); }
    absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
        SessionId, std::span<const ChunkId> ids, Instant) override {
      std::vector<std::optional<ResolvedHandle>> handles;
      for (const ChunkId& id : ids) {
        handles.emplace_back();
        for (uint32_t i = 0; i < holder_->corpus_.chunks.size(); ++i) {
          const ChunkPlacement& chunk = holder_->corpus_.chunks[i];
          if (chunk.id == id) handles.back() = ResolvedHandle{{i + 1}, chunk.token_count};
        }
      }
      return handles;
    }

   private:
    FakeHolder* const holder_;
  };

  void Run() {
    std::vector<std::unique_ptr<ServeLane>> lanes;
    while (!stop_) {
      while (std::optional<AcceptedLane> accepted = listener_->Accept())
        lanes.push_back(std::move(accepted->lane));
      Arrival arrival;
      for (const auto& lane : lanes) {
        while (lane->Poll({&arrival, 1}) == 1) Serve(*lane, arrival);
      }
      sched_yield();
    }
  }
  void Serve(ServeLane& lane, const Arrival& arrival) {
    const auto request = lane.request(arrival.slot).first(arrival.bytes);
    const auto header = DecodeRequestHeader(request);
    CKV_CHECK(header.ok());
    if (header->kind != WireKind::kProbe) return answer_(*header, lane, arrival);
    const uint32_t bytes = EncodeProbeReply(*header, request, lane.reply(arrival.slot));
    lane.Post(arrival.slot, bytes).IgnoreError();
  }

  const Corpus corpus_;
  const Answer answer_;
  const std::unique_ptr<Listener> listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ckv::test
