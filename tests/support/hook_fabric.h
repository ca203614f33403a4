// A real fabric whose requester end passes every reply to a hook, which may change it or do
// anything else. So a test can place a fault at a reply of a known number.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv::test {

// Called by the requester's thread, with the ordinal of the reply on its lane and a copy of its
// body, which the requester then sees.
using ReplyHook = std::function<void(uint32_t reply, std::span<std::byte> body)>;

class HookLane final : public RequestLane {
 public:
  HookLane(std::unique_ptr<RequestLane> inner, const ReplyHook& hook,
           std::atomic<uint32_t>& landed_count)
      : inner_(std::move(inner)),
        hook_(hook),
        landed_count_(landed_count),
        copies_(inner_->shape().slot_count),
        bodies_(inner_->shape().slot_count) {}
  FabricKind kind() const noexcept override { return inner_->kind(); }
  const LaneShape& shape() const noexcept override { return inner_->shape(); }
  absl::Status status() const override { return inner_->status(); }
  int event_fd() const noexcept override { return inner_->event_fd(); }
  bool Arm() noexcept override { return inner_->Arm(); }
  void Disarm() noexcept override { inner_->Disarm(); }
  std::optional<uint32_t> Acquire() noexcept override { return inner_->Acquire(); }
  std::span<std::byte> request(uint32_t slot) noexcept override { return inner_->request(slot); }
  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    return inner_->Post(slot, bytes);
  }
  bool Land(uint32_t slot, uint32_t head_bytes, const ScatterList& body) noexcept override {
    bodies_[slot] = body;
    return inner_->Land(slot, head_bytes, body);
  }
  bool landed(uint32_t slot) const noexcept override { return inner_->landed(slot); }
  size_t Poll(std::span<Completion> out) noexcept override {
    const size_t count = inner_->Poll(out);
    for (size_t i = 0; i < count; ++i) {
      const auto reply = inner_->reply(out[i].slot);
      std::vector<std::byte>& copy = copies_[out[i].slot];
      copy.assign(reply.begin(), reply.end());
      const auto body = std::span(copy).first(out[i].bytes).subspan(sizeof(ReplyHeader));
      if (!landed(out[i].slot)) {
        hook_(seen_++, body);
        continue;
      }
      ++landed_count_;
      // Copies the body into one span for the hook, and then back.
      const auto move = [&](auto one) {
        size_t at = 0;
        for (const std::span<std::byte> span : bodies_[out[i].slot].spans()) {
          one(span, body.subspan(at, span.size()));
          at += span.size();
        }
      };
      move([](auto span, auto part) { std::memcpy(part.data(), span.data(), span.size()); });
      hook_(seen_++, body);
      move([](auto span, auto part) { std::memcpy(span.data(), part.data(), span.size()); });
    }
    return count;
  }
  std::span<const std::byte> reply(uint32_t slot) const noexcept override { return copies_[slot]; }
  void Release(uint32_t slot) noexcept override { inner_->Release(slot); }
  void Abandon(uint32_t slot) noexcept override { inner_->Abandon(slot); }
  uint32_t in_flight() const noexcept override { return inner_->in_flight(); }

 private:
  const std::unique_ptr<RequestLane> inner_;
  const ReplyHook& hook_;
  std::atomic<uint32_t>& landed_count_;
  uint32_t seen_ = 0;
  std::vector<std::vector<std::byte>> copies_;
  std::vector<ScatterList> bodies_;
};

// `inner` must outlive it; it must outlive its lanes.
class HookFabric final : public Fabric {
 public:
  HookFabric(Fabric* inner, ReplyHook hook) : inner_(inner), hook_(std::move(hook)) {}
  // Replies whose bodies landed in the requested memory.
  uint32_t landed_count() const { return landed_count_; }

  FabricKind kind() const noexcept override { return inner_->kind(); }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    return inner_->Listen(options);
  }
  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    auto dialer = inner_->Dial(shape);
    if (!dialer.ok()) return dialer.status();
    return std::make_unique<HookDialer>(*std::move(dialer), hook_, landed_count_);
  }

 private:
  class HookDialer final : public Dialer {
   public:
    HookDialer(std::unique_ptr<Dialer> inner, const ReplyHook& hook,
               std::atomic<uint32_t>& landed_count)
        : inner_(std::move(inner)), hook_(hook), landed_count_(landed_count) {}
    const std::string& offer() const override { return inner_->offer(); }
    absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                         Instant deadline) override {
      auto lane = inner_->Connect(answer, deadline);
      if (!lane.ok()) return lane.status();
      return std::make_unique<HookLane>(*std::move(lane), hook_, landed_count_);
    }

   private:
    const std::unique_ptr<Dialer> inner_;
    const ReplyHook& hook_;
    std::atomic<uint32_t>& landed_count_;
  };
  Fabric* const inner_;
  const ReplyHook hook_;
  std::atomic<uint32_t> landed_count_{0};
};

}  // namespace ckv::test
