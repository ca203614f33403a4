// A real fabric whose requester ends see no reply while a test says so: a holder that is late.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "transport/fabric.h"

namespace ckv::test {

// Whether the lane of this ordinal, counted from 0 in the order of connections, sees no reply.
// Called by the requester's threads.
using IsStalled = std::function<bool(uint32_t lane)>;

class StallLane final : public RequestLane {
 public:
  StallLane(std::unique_ptr<RequestLane> inner, const IsStalled& stalled, uint32_t ordinal)
      : inner_(std::move(inner)), stalled_(stalled), ordinal_(ordinal) {}
  FabricKind kind() const noexcept override { return inner_->kind(); }
  const LaneShape& shape() const noexcept override { return inner_->shape(); }
  absl::Status status() const override { return inner_->status(); }
  int event_fd() const noexcept override { return inner_->event_fd(); }
  // Nothing wakes a sleeper when the stall ends.
  bool Arm() noexcept override { return !stalled_(ordinal_) && inner_->Arm(); }
  void Disarm() noexcept override { inner_->Disarm(); }
  std::optional<uint32_t> Acquire() noexcept override { return inner_->Acquire(); }
  std::span<std::byte> request(uint32_t slot) noexcept override { return inner_->request(slot); }
  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    last_posted = ordinal_;
    return inner_->Post(slot, bytes);
  }
  // The lane on which the calling thread posted last.
  static uint32_t LastPosted() { return last_posted; }
  bool Land(uint32_t slot, uint32_t head_bytes, const ScatterList& body) noexcept override {
    return inner_->Land(slot, head_bytes, body);
  }
  bool landed(uint32_t slot) const noexcept override { return inner_->landed(slot); }
  size_t Poll(std::span<Completion> out) noexcept override {
    return stalled_(ordinal_) ? 0 : inner_->Poll(out);
  }
  std::span<const std::byte> reply(uint32_t slot) const noexcept override {
    return inner_->reply(slot);
  }
  void Release(uint32_t slot) noexcept override { inner_->Release(slot); }
  void Abandon(uint32_t slot) noexcept override { inner_->Abandon(slot); }
  uint32_t in_flight() const noexcept override { return inner_->in_flight(); }

 private:
  const std::unique_ptr<RequestLane> inner_;
  const IsStalled& stalled_;
  const uint32_t ordinal_;
  static inline thread_local uint32_t last_posted = 0;
};

// `inner` must outlive it; it must outlive its lanes.
class StallFabric final : public Fabric {
 public:
  StallFabric(Fabric* inner, IsStalled stalled) : inner_(inner), stalled_(std::move(stalled)) {}
  uint32_t lane_count() const { return lane_count_; }

  FabricKind kind() const noexcept override { return inner_->kind(); }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    return inner_->Listen(options);
  }
  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    auto dialer = inner_->Dial(shape);
    if (!dialer.ok()) return dialer.status();
    return std::make_unique<StallDialer>(*std::move(dialer), this);
  }

 private:
  class StallDialer final : public Dialer {
   public:
    StallDialer(std::unique_ptr<Dialer> inner, StallFabric* fabric)
        : inner_(std::move(inner)), fabric_(*fabric) {}
    const std::string& offer() const override { return inner_->offer(); }
    absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                         Instant deadline) override {
      auto lane = inner_->Connect(answer, deadline);
      if (!lane.ok()) return lane.status();
      return std::make_unique<StallLane>(*std::move(lane), fabric_.stalled_, fabric_.lane_count_++);
    }

   private:
    const std::unique_ptr<Dialer> inner_;
    StallFabric& fabric_;
  };
  Fabric* const inner_;
  const IsStalled stalled_;
  std::atomic<uint32_t> lane_count_{0};
};

}  // namespace ckv::test
